"""The checks, one module per family. Importing this package registers all of them, laws first."""

import importlib
import pkgutil

for _name in ("laws", *(module.name for module in pkgutil.iter_modules(__path__))):
    importlib.import_module(f"{__name__}.{_name}")
