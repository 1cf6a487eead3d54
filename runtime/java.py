"""Is there a Java runtime that Spark can use?"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

JAVA_MIN: Final = 17
_JAVA_LOOKS: Final = 3
_JAVA_REMEDY: Final = "install a Java runtime, 17 or newer (Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME"


def java_problem(environ: Mapping[str, str]) -> str:
    """Why Spark has no usable Java; "" if it has one."""
    home = environ.get("JAVA_HOME", "")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environ.get("PATH", ""))
    if java is None:
        return f"no java was found on the PATH: {_JAVA_REMEDY}"
    try:
        for _ in range(_JAVA_LOOKS):
            told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
            if told.returncode >= 0:  # a killed process says nothing about Java
                break
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} cannot be run ({error.strerror if isinstance(error, OSError) else 'no answer'}): {_JAVA_REMEDY}"
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    if told.returncode or found is None:
        return f"{java} -version does not tell a version: {_JAVA_REMEDY}"
    return "" if int(found[1]) >= JAVA_MIN else f"{java} is Java {found[1]}, too old for Spark: {_JAVA_REMEDY}"
