"""What tests/ and bench/ share: facts of the machine, servers, clients, failures."""


class Failure(AssertionError):
    """What was expected and what was seen, or why something cannot be measured and what would help."""


def expect(condition, expected, seen):
    if not condition:
        raise Failure(f"expected {expected}; seen {seen}")


def expect_equal(seen, expected, what):
    expect(seen == expected, f"{what} to be {shorten(expected)}", shorten(seen))


def shorten(thing):
    text = repr(thing)
    return text if len(text) <= 200 else f"{text[:160]}... ({len(text)} characters)"


def mib(count):
    return f"{count / (1 << 20):.1f} MiB"
