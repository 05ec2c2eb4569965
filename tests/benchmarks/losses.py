"""Times every loss on given logits, forward and backward, against the bare memory.

Run as ``python -m tests.benchmarks.losses`` on the device to measure; --peers times
torch and ntloss beside it, on the same card. Prints markdown and writes losses.json.

8,192 tokens in 32 rows, digits at 10 of V ids, a share of the labels digits. The floor
is the time to read the logits twice and write a gradient once at the speed of a copy:
1.5 times that of a copy of the logits.
"""

import argparse
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import optax

from ntl_jax import NumberVocab, Objective, distances, ntl_was, stats_from_logits
from ntl_jax import cross_entropy as our_cross_entropy
from tests.benchmarks.timing import temporaries, time_call

ROWS, LENGTH = 32, 256
VOCABULARIES = (32_128, 50_257, 128_256)
FIRST_DIGIT = 100
CE = Objective(ce=1.0, was=None)


def with_ce(**terms) -> Objective:
    return Objective(**({"ce": 1.0, "was": None} | terms))


def objectives(vocab: NumberVocab) -> dict[str, Objective]:
    """What is timed beside cross-entropy alone."""
    soft = {"ce": None, "cdf_target": "gaussian"}
    matrix = jnp.asarray(distances.circular(vocab, 10))
    return {
        "NTL-WAS": with_ce(was=0.3),
        "NTL-WAS, reweigh": with_ce(was=0.3, reweigh=True),
        "NTL-WAS, squash 2": with_ce(was=0.3, squash=2.0),
        "NTL-WAS, circular": with_ce(was=0.3, distance=matrix),
        "NTL-WAS-CDF": with_ce(cdf=0.3),
        "NTL-MSE": with_ce(mse=0.3),
        "NTL-MAE": with_ce(mae=0.3),
        "NTL-Huber": with_ce(huber=0.3),
        "GCE in the place of CE": with_ce(ce=None, gce=1.0),
        "GCE + NTL": with_ce(gce=1.0, cdf=0.3, **soft),
        "number level": with_ce(number_level=0.3),
        "DEL": with_ce(digit_entropy=1.0),
        "SMMD": with_ce(smmd=0.3),
        "DIST2": with_ce(dist2=0.1),
        "NTIL": with_ce(ntil=0.3),
        "RAFT": with_ce(raft=1.0),
        "CE, smoothed, z-loss": with_ce(label_smoothing=0.1, z_loss=1e-4),
    }


def digits_among(size: int) -> NumberVocab:
    """A vocabulary of V tokens with the digits at ids 100 to 109."""
    digits = {str(d): FIRST_DIGIT + d for d in range(10)}
    return NumberVocab.from_mapping({"<pad>": 0} | digits, vocab_size=size)


def draw(size: int, dtype, share: float):
    """Logits [32, 256, V] and labels, a share of them digits."""
    keys = jax.random.split(jax.random.key(0), 4)
    shape = (ROWS, LENGTH)
    logits = jax.random.normal(keys[0], (*shape, size), dtype)
    text = jax.random.randint(keys[1], shape, 0, size)
    digits = FIRST_DIGIT + jax.random.randint(keys[2], shape, 0, 10)
    return logits, jnp.where(jax.random.uniform(keys[3], shape) < share, digits, text)


def optax_cross_entropy(logits, labels):
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean()


def measure(size: int, dtype, share: float, every: bool) -> dict:
    """{name: ms} at one vocabulary and dtype."""
    vocab = digits_among(size)
    logits, labels = draw(size, dtype, share)
    row = {"V": size, "dtype": jnp.dtype(dtype).name, "share": share}
    times, spreads, memory = {}, [], {}

    def add(name, function, *operands):
        compiled = jax.jit(function).lower(*operands).compile()
        timing = time_call(compiled, *operands)
        times[name] = timing.ms
        spreads.append(timing.spread)
        memory[name] = temporaries(compiled)

    def total(objective):
        def run(logits, labels):
            stats = stats_from_logits(logits, labels, vocab)
            return objective.total(objective(stats, labels, vocab))

        return run

    add("copy", lambda z: z + jnp.ones((), z.dtype), logits)
    add("optax CE", jax.value_and_grad(optax_cross_entropy), logits, labels)
    for name, objective in ({"CE": CE} | objectives(vocab)).items():
        if every or name in ("CE", "NTL-WAS"):
            add(name, jax.value_and_grad(total(objective)), logits, labels)
    if every:
        for name, function in {
            "CE forward": total(CE),
            "CE + NTL-WAS forward": total(with_ce(was=0.3)),
            "CE alone forward": lambda z, y: our_cross_entropy(z, y, reduction="mean"),
            "NTL-WAS alone forward": lambda z, y: ntl_was(
                z, y, vocab, reduction="mean"
            ),
        }.items():
            add(name, function, logits, labels)
        add(
            "NTL-WAS alone",
            jax.value_and_grad(lambda z, y: ntl_was(z, y, vocab, reduction="mean")),
            logits,
            labels,
        )
    largest = max(memory[name] for name in memory if name not in ("copy", "optax CE"))
    return row | {"ms": times, "spread": max(spreads), "temporaries": largest}


def print_tables(rows: list[dict]) -> None:
    """The ratios that matter, then every loss over cross-entropy alone."""
    heads = ["V", "dtype", "digits", "copy", "optax CE", "CE", "CE + NTL-WAS"]
    heads += ["/ CE", "/ optax CE", "/ floor", "temporaries", "spread"]
    print("| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads))
    for row in rows:
        ms = row["ms"]
        was, ce = ms["NTL-WAS"], ms["CE"]
        cells = [f"{row['V']:,}", row["dtype"], f"{row['share']:.0%}"]
        cells += [f"{ms[n]:.3f}" for n in ("copy", "optax CE", "CE", "NTL-WAS")]
        cells += [f"{was / ce:.3f}", f"{was / ms['optax CE']:.2f}"]
        cells += [f"{was / (1.5 * ms['copy']):.2f}"]
        cells += [f"{row['temporaries'] / 2**20:.1f} MiB", f"{row['spread']:.1%}"]
        print("| " + " | ".join(cells) + " |")
    full = [row for row in rows if len(row["ms"]) > 5]
    heads = [f"{row['V']:,} {row['dtype']} {row['share']:.0%}" for row in full]
    print("\n| over CE | " + " | ".join(heads) + " |\n|" + " --- |" * (1 + len(heads)))
    for name in full[0]["ms"] if full else ():
        ratios = [f"{row['ms'][name] / row['ms']['CE']:.3f}" for row in full]
        print(f"| {name} | " + " | ".join(ratios) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabularies", type=int, nargs="+", default=VOCABULARIES)
    parser.add_argument("--peers", action="store_true", help="torch and ntloss too")
    options = parser.parse_args()
    if options.peers:  # torch takes its memory beside ours
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.4")
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}\n")
    rows = []
    for size in options.vocabularies:
        for dtype in (jnp.bfloat16, jnp.float32):
            # The smallest logits are where what a loss adds weighs the most.
            every = size == min(options.vocabularies) and dtype == jnp.bfloat16
            rows.append(measure(size, dtype, 0.8, every))
        rows.append(measure(size, jnp.bfloat16, 0.1, every=False))
    print_tables(rows)
    report = {"card": jax.devices()[0].device_kind, "rows": rows}
    if options.peers:
        from tests.benchmarks.torch_losses import measure as measure_torch

        report["torch"] = [
            measure_torch(size, dtype)
            for size in options.vocabularies
            for dtype in ("bfloat16", "float32")
        ]
        print(json.dumps(report["torch"], indent=1))
    out = pathlib.Path(os.environ.get("OUT", "."))
    (out / "losses.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
