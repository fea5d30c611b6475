"""What the storm says of something that was left."""

from benchmarks.fault_machine import holders


class Left:
    pass


def test_what_holds_an_object_is_named_and_nothing_is_said_of_what_is_gone():
    kept = {"errors": [Left()]}
    (chain,) = holders(Left)
    assert chain.startswith("Left < list < dict errors")
    kept.clear()
    assert holders(Left) == []
