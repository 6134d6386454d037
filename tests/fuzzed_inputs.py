"""Inputs that nobody has thought of: any values, good documents altered here and there, good files with other bytes."""

from hypothesis import strategies as st

EXTREME = [0, -1, 2**31 - 1, 2**31, 2**63, 2**64, 10**30, 10**400, 1e308, 5e-324, float("inf"), float("nan")]
WORDS = ["", "k0=1,m=24", "balanced", "oea:k0=2", "0:8/3:6", "2024-13-45", "../..", "a" * 3000]
WORDS += ["\x00", "\ud800", "١", "²"]  # no character, half of one, a digit of another script, and one that is none

numbers = st.sampled_from(EXTREME) | st.integers(-3, 70) | st.floats()
text = st.sampled_from(WORDS) | st.text(st.characters(exclude_categories=()), max_size=20)
leaves = st.none() | st.booleans() | numbers | text
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=12
)


@st.composite
def altered(draw, document, changes=3):
    """A document with one to three things in it replaced, removed, added or said twice, at any depth."""
    for _ in range(draw(st.integers(1, changes))):
        document = _altered(draw, document)
    return document


def _altered(draw, value):
    # Deeper rather than not: what stands at the top is soon known.
    how = draw(st.sampled_from(["inside", "inside", "inside", "replace", "remove", "add"]))
    if isinstance(value, dict) and value and how != "replace":
        name = draw(st.sampled_from([*value]))
        if how == "inside":
            return value | {name: _altered(draw, value[name])}
        if how == "remove":
            return {key: value[key] for key in value if key != name}
        return value | {draw(text | st.sampled_from([*value])): draw(values)}
    if isinstance(value, list) and value and how != "replace":
        place = draw(st.integers(0, len(value) - 1))
        if how == "inside":
            return [*value[:place], _altered(draw, value[place]), *value[place + 1 :]]
        if how == "remove":
            return value[:place] + value[place + 1 :]
        return [*value[:place], value[place], *value[place:]]
    return draw(values)


@st.composite
def other_bytes(draw, content, changes=4):
    """A file with some of its bytes changed, cut out, put in or repeated, or cut short."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, changes))):
        place, length = draw(st.integers(0, len(changed))), draw(st.integers(0, 40))
        how = draw(st.sampled_from(["change", "change", "cut", "put", "repeat", "end"]))
        if how == "change":
            changed[place : place + 1] = draw(st.binary(min_size=1, max_size=1))
        elif how == "cut":
            del changed[place : place + length]
        elif how == "put":
            changed[place:place] = draw(st.binary(max_size=40))
        elif how == "repeat":
            changed[place:place] = changed[place : place + length]
        else:
            del changed[place:]
    return bytes(changed)
