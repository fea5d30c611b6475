import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from trw_pipeline.reporting.computational_summary import COLUMNS, computational_summary, computational_table

values = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(st.sampled_from(COLUMNS), st.lists(values, max_size=5)))
def test_a_table_reads_back_as_what_was_measured(measured):
    rows = list(csv.DictReader(io.StringIO(computational_table(measured)), delimiter="\t", strict=True))
    for column in COLUMNS:
        read = [float(row[column]) if row[column] else None for row in rows]
        given_values = list(measured.get(column, ()))
        assert read == given_values + [None] * (len(rows) - len(given_values))


def test_a_page_by_hand():
    measured = {
        "Training (s)": [20.0],
        "Epoch (s)": [9.0, 11.0],
        "Training loop (s)": [1.0, 2.0, 3.0],
        "Training data loading (s)": [0.5, 0.5, 0.5],
        "Training samples": [2, 2, 1],
        "Forward (s)": [0.25, 0.5],
        "Forward GPU (s)": [0.25, 0.25],
        "Forward GPU max memory (MB)": [256.0],
        "Optimization (s)": [None, 0.125],
        "Epoch device wait share": [0.5, None, 0.25],
        "Validation samples": [4],
        "Validation loop (s)": [0.5],
    }
    expected = [
        "************************** Computational Summary (mean ± std [n measurements]) ***************************",
        "GPU: 'A' then 'B'",
        "Phase                  | Time (s)                  | GPU Time (s)              | GPU Max Memory (MB)",
        "-" * 106,
        "Training               | 2.00e+01 [1]              |                           |",
        " Epoch                 | 1.00e+01 ± 1.41e+00 [2]   |                           |",
        "  Iteration            | 2.00e+00 ± 1.00e+00 [3]   |                           |",
        "   Data loading        | 5.00e-01 ± 0.00e+00 [3]   |                           |",
        "   Host to device      |                           |                           |",
        "   Forward             | 3.75e-01 ± 1.77e-01 [2]   | 2.50e-01 ± 0.00e+00 [2]   | 2.56e+02 [1]",
        "   Backward            |                           |                           |",
        "   Optimization        | 1.25e-01 [1]              |                           |",
        "   Other               |                           |                           |",
        "Throughput: 0.8 images/s",
        "GPU throughput: 10.0 images/s",
        "Device waited for data: 37.5 % of the time [2]",
        "-" * 106,
        "Validation             |                           |                           |",
        " Iteration             | 5.00e-01 [1]              |                           |",
        "  Data loading         |                           |                           |",
        "  Host to device       |                           |                           |",
        "  Evaluation           |                           |                           |",
        "  Metrics computation  |                           |                           |",
        "  Other                |                           |                           |",
        "Throughput: 8.0 images/s",
        "GPU throughput: not measured",
        "*" * 106,
    ]
    assert [line.rstrip() for line in computational_summary(measured, ["A", "B"]).splitlines()] == expected
