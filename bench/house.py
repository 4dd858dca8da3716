#!/usr/bin/env python3
"""The house in figures: how much code there is, who imports whom, the longest path of a key, and with --builds the cost of a first build.

house.py                    what is counted in the tree
house.py --builds OTHER     CPU seconds of a first release build of the program, against that of commit OTHER, one after the other

Figures that are measured and not counted have a command of their own; the table names it."""

import argparse
import collections
import json
import os
import re
import resource
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ELSEWHERE = {
    "./check from nothing, seconds": "./check, its last line",
    "flash that holds no object bytes at 300 B": "bench/bench.py flash-share",
    "speed against another build": "bench/bench.py builds --other COMMIT",
    "pairs of places that share six or more lines": "duplicates",
    "first byte of a get of 100 MiB over its last, and DRAM that eight of them take": "bench/bench.py large",
    "CPU of a first build": "bench/house.py --builds COMMIT",
}


def run(*words):
    return subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def tracked(ending, folder="."):
    return [path for path in run("git", "ls-files", folder).splitlines() if path.endswith(ending) and os.path.exists(os.path.join(ROOT, path))]


def text(path):
    with open(os.path.join(ROOT, path)) as file:
        return file.read()


def lines(paths):
    return sum(text(path).count("\n") for path in paths)


def rooms():
    """Of each crate of the workspace: its folder, and the crates of the workspace that it uses, tests aside."""
    packages = json.loads(run("cargo", "metadata", "--format-version", "1", "--no-deps", "--locked"))["packages"]
    names = {package["name"] for package in packages}
    return {package["name"]: (os.path.relpath(os.path.dirname(package["manifest_path"]), ROOT),
                              {one["name"] for one in package["dependencies"] if one["kind"] is None and one["name"] in names})
            for package in packages}


def below(room, all_rooms):
    """A room and all that it needs."""
    found, todo = set(), [room]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += all_rooms[name][1]
    return found


def methods(folder):
    """The type of a crate with the most methods of its own, and their number."""
    found = collections.Counter()
    for path in tracked(".rs", os.path.join(folder, "src")):
        owner = None
        for line in text(path).splitlines():
            begun = re.match(r"impl(?:<.*?>)? ([A-Z]\w*)(?!.* for )", line)
            if begun:
                owner = begun[1]
            elif line.startswith("}"):
                owner = None
            elif owner and re.match(r"    (?:pub(?:\([^)]*\))? )?(?:const )?(?:async )?(?:unsafe )?fn ", line):
                found[owner] += 1
    return found.most_common(1)[0] if found else ("", 0)


def cycle(folder):
    """The most files of a crate that import each other in a circle."""
    source = os.path.join(folder, "src")
    files = {}
    for path in tracked(".rs", source):
        module = os.path.relpath(path, source)[:-3].split("/")
        files[tuple(module[:-1] if module[-1] in ("mod", "lib", "main") else module)] = path

    def imports(module, path):
        body = text(path).split("#[cfg(test)]\nmod tests")[0]
        for head, inner in re.findall(r"^\s*(?:pub(?:\([^)]*\))? )?use ((?:crate|self|super)(?:::\w+)*)(?:::\{(.*?)\})?", body, re.M | re.S):
            words = head.split("::")
            base = {"crate": (), "self": module, "super": module[:-1]}[words[0]]
            for tail in re.findall(r"\w+(?:::\w+)*", inner) or [""]:
                whole = base + tuple(word for word in words[1:] if word != "super") + tuple(tail.split("::") if tail else ())
                target = next((whole[:end] for end in range(len(whole), 0, -1) if whole[:end] in files), None)
                # What a folder's head names again stands in a file below it.
                if target and target != module and module[:len(target)] != target:
                    yield target

    arrows = {module: set(imports(module, path)) for module, path in files.items()}

    def reach(start):
        seen, todo = set(), [start]
        while todo:
            for other in arrows[todo.pop()] - seen:
                seen.add(other)
                todo.append(other)
        return seen

    reached = {module: reach(module) for module in files}
    return max((sum(module in reached[other] for other in reached[module]) for module in files if module in reached[module]), default=0)


def stops():
    """The path of a key of a get that hits flash, as ARCHITECTURE lists it."""
    found = re.search(r"of a get that hits flash goes through (\d+) functions in (\d+) files", text("ARCHITECTURE.md"))
    return f"{found[1]} in {found[2]} files, ARCHITECTURE lists them" if found else "not listed"


def build(commit):
    """CPU seconds of a first release build of the program at a commit."""
    with tempfile.TemporaryDirectory(prefix="pumice-house-") as folder:
        tree = os.path.join(folder, "tree")
        run("git", "worktree", "add", "--detach", "--quiet", tree, commit)
        try:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(["cargo", "build", "--release", "--locked", "--quiet", "--target-dir", os.path.join(folder, "target")], cwd=tree, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        finally:
            run("git", "worktree", "remove", "--force", tree)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--builds", metavar="OTHER", help="build this commit and OTHER from nothing, and compare CPU seconds")
    arguments = parser.parse_args()
    all_rooms = rooms()
    folders = {name: folder for name, (folder, _) in all_rooms.items()}
    source = {name: lines(tracked(".rs", os.path.join(folder, "src"))) for name, folder in folders.items()}
    program = below("pumice-cli", all_rooms)
    largest = max((methods(folder) + (name,) for name, folder in folders.items()), key=lambda one: one[1])
    circle = max((cycle(folder), name) for name, folder in folders.items())
    table = {
        "lines of src, cli": source["pumice-cli"],
        "lines of src, server": source.get("pumice-server", "–"),
        "ours in a build of the program, lines of src": sum(source[name] for name in program),
        "all Rust, lines": lines(tracked(".rs")),
        "Python, lines": lines(tracked(".py")),
        "rooms that cli imports": len(all_rooms["pumice-cli"][1] - {"pumice-locks"}),
        "methods of the largest type": f"{largest[1]} ({largest[0]} of {largest[2]})",
        "largest import cycle, files": f"{circle[0]} ({circle[1]})",
        "stops of the key of a get that hits flash": stops(),
    }
    if arguments.builds:
        ours, other = build("HEAD"), build(arguments.builds)
        table[f"first build, CPU seconds, against {arguments.builds}"] = f"{ours:.0f} / {other:.0f} = {ours / other:.2f}"
    print(f"commit {run('git', 'rev-parse', '--short=12', 'HEAD').strip()}\n\n| what | now |\n| --- | ---: |")
    for name, value in table.items():
        print(f"| {name} | {value} |")
    print("\nMeasured by commands of their own:\n")
    for name, command in ELSEWHERE.items():
        print(f"- {name}: `{command}`")


if __name__ == "__main__":
    main()
