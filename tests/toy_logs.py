"""What logs have in them, read by others than those who wrote them."""

import csv
import json


def table_of(path):
    """The rows of a CSV file as dicts of text."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


def json_lines_of(path):
    """The objects of a file of JSON lines."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def events_of(path):
    """The (step, tag, value) of an event file, one by one: TensorBoard itself would show each step once."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    return [(e.step, v.tag, v.simple_value) for e in LegacyEventFileLoader(str(path)).Load() for v in e.summary.value]
