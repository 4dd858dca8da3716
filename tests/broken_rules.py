#!/usr/bin/env python3
"""Shows that the checks can fail: breaks one rule of the program on purpose after another, and says which checks notice.

By hand, not part of ./check: it takes more than an hour on two cores. In a copy of the source each rule of rules_to_break.py gets a
switch, which an environment variable throws: one build serves all, and is kept under target/broken-rules. An edit whose place is not
found exactly once is an error, so that a rule that was rewritten is looked at here, too. Without a broken rule every check has to pass; with one, some check has to fail; and
each check has to fail under some rule.

  tests/broken_rules.py                       # everything
  tests/broken_rules.py --brief               # of each rule only until a check notices: a third of the time
  tests/broken_rules.py --rules log,expiry    # only these
  tests/broken_rules.py --checks crash,faults # only these
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time

from harness import ROOT, TARGET
from rules_to_break import RULES

SWITCH = "BROKEN_RULE"
# Name, and the test program or script with its arguments. Of test programs every test counts for itself.
CHECKS = [
    ("crash", ["pumice", "crash"]),
    ("crash-store", ["pumice-flash", "crash"]),
    ("crash-twice", ["pumice", "crash_again"]),
    ("faults", ["pumice", "faults"]),
    ("swarm", ["pumice", "swarm"]),
    ("power", ["pumice", "power"]),
    ("taken-out", ["pumice", "taken_out"]),
    ("remembered", ["pumice", "remembered"]),
    ("hangs", ["pumice", "hangs"]),
    ("log-hole", ["pumice", "log_hole"]),
    ("lost-checkpoint", ["pumice", "lost_checkpoint"]),
    ("threads", ["pumice", "threads"]),
    ("kill9-ripq", ["tests/kill9.py", "--rounds", "4", "--", "--layout", "ripq"]),
    ("kill9-cascade", ["tests/kill9.py", "--rounds", "4", "--dram", "72MiB", "--", "--layout", "fifo", "--index", "cascade"]),
    ("history", ["tests/history.py", "--seconds", "30", "--kills", "6", "--cases", "2"]),
]
FOLDERS = {"pumice": "engine", "pumice-flash": "flash"}
SECONDS_MAX = 400


def die(what):
    sys.exit(f"broken_rules: {what}")


def source():
    """All files of the source, by name."""
    names = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    files = {}
    for name in names.stdout.decode().split("\0"):
        path = os.path.join(ROOT, name)
        if name and os.path.isfile(path):
            with open(path, "rb") as file:
                files[name] = file.read()
    return files


def write_tree(tree, files):
    """Makes the copy. What is the same as in the copy before keeps its time, so that it is not built again."""
    for name, data in files.items():
        path = os.path.join(tree, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path):
            with open(path, "rb") as file:
                if file.read() == data:
                    continue
        with open(path, "wb") as file:
            file.write(data)
    for folder, _, names in os.walk(tree):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.relpath(path, tree) not in files:
                os.remove(path)


def switch(rule):
    """An expression that is true if the rule is broken."""
    rule_of = f'std::env::var("{SWITCH}").is_ok_and(|rule| rule == "{rule}")'
    return f"(**{{ static RULE: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {rule_of}); &RULE }})"


def put_switches(files):
    for rule, _, edits in RULES:
        for name, old, new in edits:
            text = files[name].decode()
            if text.count(old) != 1:
                die(f"rule {rule}: {name} has this {text.count(old)} times, and not once:\n{old}")
            if "BROKEN" not in new:
                die(f"rule {rule}: an edit without a switch")
            files[name] = text.replace(old, new.replace("BROKEN", switch(rule))).encode()


def build(tree, target):
    """Builds what the checks need; returns paths of test programs by folder and name."""
    programs = [command for _, command in CHECKS if not is_script(command)]
    # The program itself is built for the tests of its package.
    programs.append(["pumice-cli", "command_line"])
    command = ["cargo", "test", "--no-run", "--locked", "--message-format", "json"]
    for flag, at in (("-p", 0), ("--test", 1)):
        for name in sorted({program[at] for program in programs}):
            command += [flag, name]
    print(*command, flush=True)
    environment = {**os.environ, "CARGO_TARGET_DIR": target}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    artifacts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        said = [artifact["message"]["rendered"] for artifact in artifacts if "message" in artifact]
        die(f"the build failed:\n{''.join(said)[-4000:]}{done.stderr[-2000:]}")
    paths = {}
    for artifact in artifacts:
        if artifact.get("executable") and "test" in artifact["target"]["kind"]:
            package = os.path.basename(os.path.dirname(artifact["manifest_path"]))
            paths[f"{package}/{artifact['target']['name']}"] = artifact["executable"]
    return paths


def is_script(command):
    return command[0].endswith(".py")


class Check:
    """One check: how it is run, and under which rules it, or which of its tests, failed."""

    def __init__(self, name, command, tree, target, programs):
        self.name, self.tree, self.target = name, tree, target
        self.is_script = is_script(command)
        if self.is_script:
            self.command = [sys.executable, *command]
        else:
            self.command = [programs[f"{FOLDERS[command[0]]}/{command[1]}"]]
        self.passed, self.failed_under = set(), {}

    def run(self, rule):
        """Names of the tests that failed."""
        environment = {k: v for k, v in os.environ.items() if k != SWITCH}
        environment["CARGO_TARGET_DIR"] = os.path.join(self.target, "run")
        environment["PUMICE_BIN"] = os.path.join(self.target, "debug", "pumice")
        if rule:
            environment[SWITCH] = rule
        started = time.monotonic()
        # A broken rule may also make a test wait for ever.
        process = subprocess.Popen(
            self.command, cwd=self.tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=SECONDS_MAX)
            status = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            said, _ = process.communicate()
            status = "no end"
        tests = dict(re.findall(r"^test (\S+) \.\.\. (ok|FAILED)", said, re.MULTILINE))
        failed = sorted(name for name, result in tests.items() if result == "FAILED")
        self.passed |= {name for name, result in tests.items() if result == "ok"}
        if status != 0 and not failed:
            failed = [self.name]
        if not tests:
            self.passed |= {self.name}
        if failed and rule:
            for name in failed:
                self.failed_under.setdefault(name, []).append(rule)
        return failed, said, time.monotonic() - started


def first_words(said):
    """What the first failure said."""
    for line in said.splitlines():
        if re.search(r"FAILED: |wrong:|panicked at|cannot be right|came back|holds ", line):
            return line.strip()[:160]
    return said.strip().splitlines()[-1][:160] if said.strip() else ""


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rules", default=None, help="names, with commas")
    arguments.add_argument("--checks", default=None, help="names, with commas")
    arguments.add_argument("--brief", action="store_true", help="leave a rule when a check has noticed it")
    arguments.add_argument("--build", action="store_true", help="build, and run nothing")
    arguments.add_argument("--fit", action="store_true", help="only see that every rule is still found in the code")
    arguments.add_argument("--built", action="store_true", help="run what was built before")
    arguments = arguments.parse_args()
    rules = [rule for rule in RULES if arguments.rules is None or rule[0] in arguments.rules.split(",")]
    chosen = [check for check in CHECKS if arguments.checks is None or check[0] in arguments.checks.split(",")]
    place = os.path.join(TARGET, "broken-rules")
    tree, target = os.path.join(place, "source"), os.path.join(place, "target")
    known = os.path.join(place, "programs.json")
    if not arguments.built:
        files = source()
        put_switches(files)
        if arguments.fit:
            return
        write_tree(tree, files)
        with open(known, "w", encoding="utf-8") as file:
            json.dump(build(tree, target), file)
    if arguments.build:
        return
    with open(known, encoding="utf-8") as file:
        programs = json.load(file)
    checks = [Check(name, command, tree, target, programs) for name, command in chosen]
    failures = judge(rules, checks, arguments.brief)
    sys.exit("broken_rules: " + "; ".join(failures) if failures else 0)


def judge(rules, checks, brief):
    failures, times = [], {}
    for check in checks:
        failed, said, took = check.run(None)
        times[check.name] = took
        print(f"no rule broken: {check.name} {'FAILS: ' + first_words(said) if failed else 'passes'} ({took:.0f} s)", flush=True)
        if failed:
            failures.append(f"{check.name} fails without a broken rule")
    print("\n| rule | what is broken | " + " | ".join(check.name for check in checks) + " |")
    print("| --- | --- |" + " --- |" * len(checks), flush=True)
    notes, run = [], {check.name: set() for check in checks}

    def notices(check, rule):
        failed, said, _ = check.run(rule)
        run[check.name].add(rule)
        if failed:
            notes.append(f"{rule}, {check.name}: {', '.join(failed)}: {first_words(said)}")
        if not failed:
            return ""
        return "caught" if check.is_script or failed == [check.name] else f"caught by {len(failed)}"

    for rule, what, _ in rules:
        cells = dict.fromkeys((check.name for check in checks), "–")
        # Those first that have noticed nothing yet, and of these the fastest.
        for check in sorted(checks, key=lambda check: (bool(check.failed_under), times[check.name])) if brief else checks:
            cells[check.name] = notices(check, rule)
            if brief and cells[check.name]:
                break
        print(f"| `{rule}` | {what} | " + " | ".join(cells.values()) + " |", flush=True)
        if not any(cell.startswith("caught") for cell in cells.values()):
            failures.append(f"nothing notices `{rule}`")
    for check in checks if brief else []:
        left = [rule for rule, _, _ in rules if rule not in run[check.name]]
        while left and not check.failed_under:
            notices(check, left.pop(0))
    print("\n" + "\n".join(notes))
    for check in checks:
        never = sorted(check.passed - set(check.failed_under))
        if never:
            print(f"{check.name}: never failed: {', '.join(never)}")
        if not check.failed_under:
            failures.append(f"{check.name} fails under no rule")
    return failures


if __name__ == "__main__":
    main()
