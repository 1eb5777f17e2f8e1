"""Fetch neural-lam's source distribution, run its test suite on its classes and on ours, and compare test by test."""

from __future__ import annotations

import collections
import os
import re
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests.natural_earth import make_natural_earth

from . import data

RELEASE = "neural_lam-0.7.0"
ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "peer"
PLUGIN = "peer_plugin"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

Outcomes = dict[str, str]


def main() -> int:
    """Exit status 0 if every test that passes with neural-lam's classes passes with ours."""
    suite = fetch_suite()
    own, _ = run_suite(suite, "own")
    ours, said = run_suite(suite, "ours")
    built = int(re.findall(r"PEER built (\d+) of ours", said)[-1])
    for outcome in (PASSED, FAILED, SKIPPED):
        counts = [collections.Counter(results.values())[outcome] for results in (own, ours)]
        print(f"{outcome:<8} {counts[0]:>4} with neural-lam's classes, {counts[1]:>4} with ours")
    for name in sorted(name for name, outcome in own.items() if outcome == FAILED):
        print(f"fails with neural-lam's own: {name}")
    lost = sorted(name for name, outcome in own.items() if outcome == PASSED and ours.get(name) != PASSED)
    for name in lost:
        print(f"fails with ours alone: {name}")
    passed = sum(outcome == PASSED for outcome in own.values())
    print(f"peer-test: {passed - len(lost)} of {passed} tests of {RELEASE} pass with our classes, built {built} times")
    return int(bool(lost) or built == 0 or passed == 0)


def fetch_suite() -> Path:
    """The unpacked source distribution with stand-in data, made anew from the cached archive."""
    CACHE.mkdir(parents=True, exist_ok=True)
    archive = CACHE / f"{RELEASE}.tar.gz"
    if not archive.exists():
        print(f"fetching {RELEASE} from the package index", flush=True)
        download = ["download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run(
            [sys.executable, "-m", "pip", *download, "--dest", CACHE, "neural-lam==0.7.0"], check=True, timeout=600
        )
    suite = CACHE / RELEASE
    shutil.rmtree(suite, ignore_errors=True)
    with tarfile.open(archive) as packed:
        packed.extractall(CACHE, filter="data")
    shutil.rmtree(suite / "neural_lam")  # the installed one is what is tested
    data.make_danra(suite / "tests")
    data.make_meps(suite / "tests")
    return suite


def run_suite(suite: Path, classes: str) -> tuple[Outcomes, str]:
    """Outcome by test, and what pytest printed."""
    report, log = CACHE / f"{classes}.xml", CACHE / f"{classes}.log"
    report.unlink(missing_ok=True)
    path = f"{Path(__file__).parent}{os.pathsep}{ROOT}"  # the suite's own package is called tests as well
    settings = {"PEER_CLASSES": classes, "PYTHONPATH": path, "WANDB_MODE": "disabled", "MPLBACKEND": "Agg"}
    environment = {**os.environ, **settings, **make_natural_earth(CACHE / "natural_earth")}
    command = [sys.executable, "-m", "pytest", "tests", "-q", "-p", PLUGIN, f"--junitxml={report}"]
    print(f"running the suite with {classes} classes; see {log.relative_to(ROOT)}", flush=True)
    with log.open("w") as file:
        subprocess.run(command, cwd=suite, env=environment, stdout=file, stderr=file, timeout=3000)
    return read_report(report), log.read_text()


def read_report(report: Path) -> Outcomes:
    """Outcome by test from a JUnit file."""
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        failed = kinds & {"failure", "error"}
        outcome = FAILED if failed else SKIPPED if "skipped" in kinds else PASSED
        outcomes[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
