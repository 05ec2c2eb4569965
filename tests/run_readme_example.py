"""Runs the README's first Python example alone: `run_readme_example.py README.md`.

For the bare wheel, in an environment with nothing but jax, numpy and jaxtyping.
"""

import doctest
import importlib.util
import re
import sys


def first_example(text: str) -> str:
    """The first fenced Python block."""
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    if found is None:
        raise SystemExit("the README has no ```python block")
    return found.group(1)


def main(path: str) -> None:
    """Runs the example; exits with an error where it does not print what it says."""
    extra = [name for name in ("flax", "torch") if importlib.util.find_spec(name)]
    if extra:
        raise SystemExit(f"this environment is not bare: it has {extra}")
    with open(path, encoding="utf-8") as file:
        source = first_example(file.read())
    test = doctest.DocTestParser().get_doctest(source, {}, "README", path, 0)
    runner = doctest.DocTestRunner()
    runner.run(test)
    print(f"{runner.tries} statements, {runner.failures} failures")
    if runner.failures or not runner.tries:
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1])
