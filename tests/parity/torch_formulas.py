"""Every public loss in float64 PyTorch, written from the formulas.

Numbers of several digits are spelled out by hand for the texts of the batch, so that
nothing here finds numbers the way the losses do.
"""

from functools import cached_property, partial

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from tests.losses.public_losses import IGNORED, TOKENS, VOCAB

VALUES = torch.tensor(VOCAB.values, dtype=torch.float64)
IDS = torch.tensor(VOCAB.token_ids, dtype=torch.long)
STEPS = (VALUES[:, None] - VALUES[None, :]).abs()  # [K, K]

# (row, positions of the digits, power of ten of the last digit, position of the sign)
# in "a12.04b5", "-7.8a9_5" and "6923.-17".
DECIMALS = [
    (0, (1, 2, 4, 5), -2, None),
    (0, (7,), 0, None),
    (1, (1, 3), -1, 0),
    (1, (5,), 0, None),
    (1, (7,), 0, None),
    (2, (0, 1, 2, 3), 0, None),
    (2, (6, 7), 0, 5),
]
RUNS = [  # of digits alone
    [(1, 2), (4, 5), (7,)],
    [(1,), (3,), (5,), (7,)],
    [(0, 1, 2, 3), (6, 7)],
]


class Batch:
    """Float64 logits that a gradient can be taken for, and what is read off them."""

    def __init__(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray):
        self.z = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
        kept = labels != IGNORED
        ids = np.where(kept, labels, 0)
        self.labels = torch.tensor(ids, dtype=torch.long)
        w = torch.tensor(weights, dtype=torch.float64)
        self.weights = w * torch.tensor(kept)
        row = VOCAB.row[ids]
        self.number = torch.tensor(kept & (row >= 0))
        self.row = torch.tensor(np.maximum(row, 0), dtype=torch.long)
        self.y = VALUES[self.row]

    @cached_property
    def d(self):
        return self.z[..., IDS]

    @cached_property
    def q(self):
        return torch.softmax(self.d, dim=-1)

    @cached_property
    def log_p(self):
        return torch.log_softmax(self.z, dim=-1)

    @cached_property
    def p(self):
        return self.log_p.exp()[..., IDS]

    @cached_property
    def mass(self):
        return self.p.sum(dim=-1)

    @cached_property
    def expected(self):
        return self.q @ VALUES

    def at_numbers(self, loss):
        return loss * self.weights * self.number

    def reweighed(self, loss, worst):
        return self.mass * loss + 1.01 * worst * (1 - self.mass)

    def gaussian(self, sigma, doubled=False):
        g = torch.exp(-((VALUES - self.y[..., None]) ** 2) / (2 * sigma**2))
        g = g * (1 + F.one_hot(self.row, len(VALUES))) if doubled else g
        return g / g.sum(dim=-1, keepdim=True)


def cross_entropy(b, smoothing=0.0, z_loss=0.0):
    nll = -b.log_p.gather(-1, b.labels[..., None])[..., 0]
    lse = torch.logsumexp(b.z, dim=-1)
    even = -b.log_p.mean(dim=-1)
    return b.weights * ((1 - smoothing) * nll + smoothing * even + z_loss * lse**2)


def was(b, q=None, cost=STEPS, reweigh=False):
    loss = ((b.q if q is None else q) * cost[b.row]).sum(dim=-1)
    return b.at_numbers(b.reweighed(loss, cost.max()) if reweigh else loss)


def squashed(factor):
    low, high = STEPS[STEPS > 0].min(), STEPS.max()
    cost = 1 + (STEPS - low) * (factor - 1) / (high - low)
    return torch.where(STEPS == 0, 0.0, cost)


def was_cdf(b, sigma=None, gaps=True, full=False, reweigh=False):
    order = VALUES.argsort()
    q, mass = (b.p, b.mass[..., None]) if full else (b.q, 1.0)
    t = F.one_hot(b.row, len(VALUES)) if sigma is None else b.gaussian(sigma)
    moved = (q - mass * t)[..., order].cumsum(dim=-1)[..., :-1].abs()
    steps = VALUES[order].diff() if gaps else torch.ones(len(VALUES) - 1)
    loss = (moved * steps.double()).sum(dim=-1)
    return b.at_numbers(b.reweighed(loss, steps.sum()) if reweigh else loss)


def penalty(b, rho, full=False, reweigh=False):
    loss = rho((b.p if full else b.q) @ VALUES - b.y)
    worst = rho(VALUES.max() - VALUES.min())
    return b.at_numbers(b.reweighed(loss, worst) if reweigh else loss)


def huber(d, delta):
    return torch.where(d.abs() <= delta, d**2 / 2, delta * (d.abs() - delta / 2))


def optimal_transport(b, sigma, epsilon):
    """The primal at the plan of 400 plain Sinkhorn steps, all of it differentiated."""
    s = VALUES.sign() * torch.log1p(VALUES.abs())
    cost = (s[:, None] - s[None, :]).abs()  # [Y, K]
    blur = epsilon * cost.max()
    log_t, log_q = b.gaussian(sigma).log(), b.q.log()
    f = torch.zeros_like(log_q)
    for _ in range(400):
        g = -blur * torch.logsumexp(
            log_q[..., None, :] + (f[..., None, :] - cost) / blur, -1
        )
        f = -blur * torch.logsumexp(
            log_t[..., :, None] + (g[..., :, None] - cost) / blur, -2
        )
    excess = (f[..., None, :] + g[..., :, None] - cost) / blur
    plan = (log_q[..., None, :] + log_t[..., :, None] + excess).exp()
    return b.at_numbers((plan * (cost + blur * excess)).sum(dim=(-2, -1)))


def gaussian_cross_entropy(b, sigma, doubled=False):
    soft = -(b.gaussian(sigma, doubled) * b.log_p[..., IDS]).sum(dim=-1)
    return torch.where(b.number, soft * b.weights, cross_entropy(b))


def dist2(b, tau, full=False):
    log_f = torch.log_softmax(-((VALUES - b.y[..., None]) ** 2) / tau, dim=-1)
    log_q = b.log_p[..., IDS] if full else b.q.log()
    return b.at_numbers((log_f.exp() * (log_f - log_q)).sum(dim=-1))


def smmd(b, sigma=2.0):
    kernel = torch.exp(-(STEPS**2) / (2 * sigma**2))
    degree = kernel.sum(dim=1)
    matrix = kernel + (torch.diag(degree) - kernel) / (2 * degree.mean())
    r = b.q - F.one_hot(b.row, len(VALUES))
    return b.at_numbers(torch.einsum("bti,ij,btj->bt", r, matrix, r))


def raft(b):
    last = torch.zeros_like(b.number)
    last[:, -1] = True  # all three rows end in a digit
    return b.at_numbers(((b.p @ VALUES - b.y) ** 2) * last)


def digit_entropy(b):
    one_hot = F.one_hot(b.row, len(VALUES))
    binary = F.softplus(b.d) - one_hot * b.d
    loss = (b.q * binary).sum(dim=-1) / 10
    place = torch.zeros_like(loss)
    for row, digits, last, _ in DECIMALS:
        for i, t in enumerate(digits):
            e = len(digits) - 1 - i + last  # the power of ten
            # The point takes a step of its own.
            place[row, t] = 2 * (e + 1) if e >= 0 else 1.02 ** (e - 1)
    return b.at_numbers(place * loss)


def spelled(digits, last):
    """sum_i digits_i 10^i from the right."""
    n = len(digits)
    return sum(d * 10.0 ** (n - 1 - i + last) for i, d in enumerate(digits))


def number_level(b, log_space=False):
    loss = torch.zeros_like(b.weights)
    for row, digits, last, sign in DECIMALS:
        truth = spelled([b.y[row, t] for t in digits], last)
        guess = spelled([b.expected[row, t] for t in digits], last)
        if sign is not None:
            guess = guess * (2 * b.log_p[row, sign, TOKENS["-"]].exp() - 1)
        if log_space:
            error = (guess.sign() * torch.log1p(guess.abs()) - torch.log1p(truth)).abs()
        else:
            error = (guess - truth).abs() / (truth + 10.0 ** (len(digits) - 1 + last))
        loss[row, digits[0]] = error
    return b.at_numbers(loss)


def number_level_ntloss(b):
    loss = torch.zeros_like(b.weights)
    for row, digits, _, _ in DECIMALS:
        truth = spelled([b.y[row, t] for t in digits], 0)
        guess = spelled([b.expected[row, t] for t in digits], 0)
        error = (guess - truth).abs() / (guess + truth + np.finfo(np.float32).eps)
        loss[row, digits[0]] = b.reweighed(error, 1.0)[row, digits[0]]
    return b.at_numbers(loss)


def ntil(b, straight_through=True):
    distance = (b.q * STEPS[b.row]).sum(dim=-1)
    soft = torch.softmax(b.d / 0.1, dim=-1) @ VALUES
    hard = VALUES[b.d.argmax(dim=-1)]
    digit = hard + (soft - soft.detach()) if straight_through else b.expected
    rows = []
    for row, numbers in enumerate(RUNS):
        parts = torch.zeros(3, dtype=torch.float64)
        counts = torch.zeros(3, dtype=torch.float64)
        for run in numbers:
            w = b.weights[row, list(run)]
            places = torch.tensor([1.2 ** (len(run) - 1 - i) for i in range(len(run))])
            tokens = (w * places.double() * distance[row, list(run)]).sum()
            truth = spelled([b.y[row, t] for t in run], 0)
            guess = spelled([digit[row, t] for t in run], 0)
            relative = (guess - truth).abs() / (torch.maximum(guess, truth) + 1)
            magnitude = (torch.log1p(guess) - torch.log1p(truth)).abs()
            parts = parts + torch.stack([tokens, w[0] * relative, w[0] * magnitude])
            counts = counts + torch.stack([w.sum(), w[0], w[0]])
        rows.append((parts / counts) @ torch.tensor([1.0, 0.2, 0.2]).double())
    return torch.stack(rows)


FORMULAS = {
    "cross_entropy": cross_entropy,
    "cross_entropy smoothed": partial(cross_entropy, smoothing=0.1),
    "cross_entropy z": partial(cross_entropy, z_loss=1e-3),
    "ntl_was": was,
    "ntl_was full": lambda b: was(b, b.p),
    "ntl_was squashed": partial(was, cost=squashed(3.0), reweigh=True),
    "ntl_was alike": lambda b: b.at_numbers(
        1 - b.q.gather(-1, b.row[..., None])[..., 0]
    ),
    "ntl_was circular": partial(was, cost=torch.minimum(STEPS, 10 - STEPS)),
    "ntl_was_cdf": was_cdf,
    "ntl_was_cdf target": partial(was_cdf, sigma=1.0, reweigh=True),
    "ntl_was_cdf full": partial(was_cdf, sigma=1.0, gaps=False, full=True),
    "ntl_dot_product": partial(penalty, rho=lambda d: torch.sqrt(d**2 + 1)),
    "ntl_mse": partial(penalty, rho=torch.square),
    "ntl_mae": partial(penalty, rho=torch.abs, reweigh=True),
    "ntl_huber": partial(penalty, rho=partial(huber, delta=2.0), full=True),
    "ntl_optimal_transport": partial(optimal_transport, sigma=1.0, epsilon=0.1),
    "gaussian_cross_entropy": partial(gaussian_cross_entropy, sigma=0.5),
    "gaussian_cross_entropy doubled": partial(
        gaussian_cross_entropy, sigma=2.0, doubled=True
    ),
    "gaussian_cross_entropy and NTL": lambda b: (
        gaussian_cross_entropy(b, 1.0) + 0.3 * was_cdf(b, 1.0)
    ),
    "number_level_loss": number_level,
    "number_level_loss log": partial(number_level, log_space=True),
    "number_level_loss ntloss": number_level_ntloss,
    "digit_entropy": digit_entropy,
    "dist2": partial(dist2, tau=1.0),
    "dist2 full": partial(dist2, tau=4.0, full=True),
    "ntil": ntil,
    "ntil expected": partial(ntil, straight_through=False),
    "smmd": smmd,
    "raft": raft,
}


def by_formula(name, logits, labels, weights) -> tuple[np.ndarray, np.ndarray]:
    """(losses, gradient of their sum), in float64."""
    b = Batch(logits, labels, weights)
    tokens = FORMULAS[name](b)
    tokens.sum().backward()
    return tokens.detach().numpy(), b.z.grad.numpy()
