import tests.triton_setup  # noqa: F401
