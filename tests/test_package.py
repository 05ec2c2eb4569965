"""What `import ntl_jax` brings with it."""

import subprocess
import sys

LOADED = """
import sys
import jax, numpy, jaxtyping
before = set(sys.modules)
import ntl_jax
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(new - set(sys.stdlib_module_names) - {"ntl_jax", "jax", "numpy"}))
"""


def test_importing_the_package_loads_only_jax_numpy_and_jaxtyping():
    out = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[]"


def test_every_public_name_of_the_losses_is_public_in_the_package():
    import ntl_jax
    from ntl_jax import losses

    for name, value in vars(losses).items():
        if getattr(value, "__module__", "").startswith("ntl_jax.losses."):
            assert getattr(ntl_jax, name) is value
