import pytest

from trw_pipeline.training.class_names import class_names_of

NAMES = {0: "cat", 1: "dog"}
INFOS = {"d": {"valid": {"output_mappings": {"truth": {"mappinginv": NAMES}, "other": None}}}}


def test_names_are_found_by_dataset_and_split():
    assert class_names_of(INFOS, "d", "valid") == {"truth": NAMES}


@pytest.mark.parametrize("infos", [None, {}, {"d": None}, {"d": {}}, {"d": {"valid": {}}}, {"other": INFOS["d"]}])
def test_what_is_absent_has_no_names(infos):
    assert class_names_of(infos, "d", "valid") == {}


@pytest.mark.parametrize("mapping", [["cat", "dog"], {"mapping": {"cat": 0}}, "cat"])
def test_names_in_another_form_are_warned_of(mapping, caplog):
    infos = {"d": {"valid": {"output_mappings": {"shape": mapping}}}}
    assert class_names_of(infos, "d", "valid") == {}
    assert "the classes of 'shape' have no names" in caplog.text
