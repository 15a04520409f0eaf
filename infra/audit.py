"""Look up known holes in the packages that the image installs.

    python -m venv build/audit && build/audit/bin/pip install pip-audit
    python infra/audit.py build/audit/bin/python

Fails when there is one. Where the database of advisories cannot be reached it says so, loudly, and
nothing is proven.
"""

import json
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).parent / "image/requirements.lock"
LIMIT_S = 120


def main() -> int:
    """1 when a package has a known hole."""
    command = [sys.argv[1], "-m", "pip_audit", "--format=json", "--progress-spinner=off"]
    command += ["--requirement", str(LOCK), "--require-hashes", "--disable-pip"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        packages = json.loads(done.stdout)["dependencies"]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
        print(f"AUDIT SKIPPED: pip-audit gave nothing ({error!r})")
        return 0
    seen = [package for package in packages if "skip_reason" not in package]
    if len(seen) < len(packages):
        unseen = len(packages) - len(seen)
        print(f"AUDIT {'INCOMPLETE' if seen else 'SKIPPED'}: {unseen} of {len(packages)} packages")
        print(next(p["skip_reason"] for p in packages if "skip_reason" in p))
    holes = [(package, hole) for package in seen for hole in package["vulns"]]
    for package, hole in holes:
        fixed = ", ".join(hole["fix_versions"]) or "no version yet"
        print(f"{package['name']} {package['version']} has {hole['id']}; it is mended in {fixed}")
    return 1 if holes else 0


if __name__ == "__main__":
    sys.exit(main())
