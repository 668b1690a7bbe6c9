"""Mooncake's package as a program of ``pykvpool mooncake-shim`` sees it: the store is the pool's.

Other modules of Mooncake are found where it is installed.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
