import io
import re

import pytest
from PIL import Image

from trw_pipeline.reporting import run_pictures
from trw_pipeline.reporting.run_pictures import galleries, is_small


def write_png(path, size=(8, 6)):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = io.BytesIO()
    Image.new("RGB", size, "red").save(data, format="PNG")
    path.write_bytes(data.getvalue())


def test_pictures_are_found_by_what_they_show(tmp_path):
    for name in (
        "y-d-valid-cm.png",
        "y-d-valid-ROC.png",
        "y-d-valid-history.png",
        "explained/a.png",
        "errors/d/b.png",
        "mine/c.png",
        "loose.png",
    ):
        write_png(tmp_path / name)
    found = {gallery.title: len(gallery.pictures) for gallery in galleries(tmp_path)}
    assert list(found.items()) == [
        ("Confusion matrices", 1),
        ("ROC curves", 1),
        ("Errors of each class", 1),
        ("Classification errors", 1),
        ("Explanations", 1),
        ("Other pictures", 1),
        ("mine", 1),
    ]


def test_curves_that_the_page_draws_itself_are_left_out(tmp_path):
    for name in ("history/loss.png", "lr_recorder/d.png", "checkpoints/x.png", ".hidden/x.png", ".x.png"):
        write_png(tmp_path / name)
    assert galleries(tmp_path) == []


def test_a_picture_is_in_the_page_with_its_size_and_the_text_of_its_sample(tmp_path):
    write_png(tmp_path / "explained" / "d_valid_s3_image.png", (8, 6))
    (tmp_path / "explained" / "d_valid_s3.txt").write_text(
        "uid: 3\nimage: float32 (6, 8), in d_valid_s3_image.png\ntruth: <cat>\n" + "x" * 500 + "\n"
    )
    (gallery,) = galleries(tmp_path)
    (picture,) = gallery.pictures
    assert 'src="data:image/png;base64,iVBORw0KGgo' in picture
    assert 'width="8" height="6"' in picture
    assert "uid: 3<br>truth: &lt;cat&gt;<br>" in picture
    assert f"{'x' * 160}...<" in picture
    assert is_small(picture)
    write_png(tmp_path / "explained" / "d_valid_s3_image.png", (161, 6))
    assert not is_small(galleries(tmp_path)[0].pictures[0])


def names_of(gallery):
    return re.findall(r"<strong>(.*?)</strong>", "".join(gallery.pictures))


def test_of_many_the_first_are_shown_and_the_others_counted(tmp_path):
    for number in range(15):
        write_png(tmp_path / "explained" / f"s{number}.png")
    (gallery,) = galleries(tmp_path)
    assert gallery.nb_left_out == 3
    assert names_of(gallery) == [f"s{number}" for number in range(12)], "in the order of the numbers"


def test_those_of_the_newest_epoch_are_shown(tmp_path):
    for epoch in (2, 10, 9):
        write_png(tmp_path / "samples" / f"d_s0_e{epoch}_image.png")
        write_png(tmp_path / "convolution_kernels" / f"kernel0_filter0_iter_{epoch}.png")
    assert [names_of(gallery) for gallery in galleries(tmp_path)] == [
        ["d_s0_e10_image"],
        ["kernel0_filter0_iter_10"],
    ]


def test_splits_and_algorithms_share_the_room_there_is(tmp_path):
    write_png(tmp_path / "worst_samples_by_epoch" / "test.png")
    for number in range(20):
        for split in ("test", "train"):
            write_png(tmp_path / "worst_samples_by_epoch" / f"{split}_s{number}.png")
    (gallery,) = galleries(tmp_path)
    shown = names_of(gallery)
    assert [sum(name.startswith(split) for name in shown) for split in ("test_", "train_")] == [6, 5]
    assert {"test", "test_s0", "train_s0"} <= set(shown), "the worst first"


def test_all_pictures_together_have_a_bound(tmp_path, monkeypatch):
    for name in ("a-cm.png", "b-cm.png", "explained/c.png"):
        write_png(tmp_path / name)
    size = (tmp_path / "a-cm.png").stat().st_size
    monkeypatch.setattr(run_pictures, "ALL_BYTES", 2 * size)
    assert [(len(one.pictures), one.nb_left_out) for one in galleries(tmp_path)] == [(2, 0), (0, 1)]
    monkeypatch.setattr(run_pictures, "PICTURE_BYTES", size - 1)
    assert [(len(one.pictures), one.nb_left_out) for one in galleries(tmp_path)] == [(0, 2), (0, 1)]


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n" + b"0" * 40])
def test_what_is_no_whole_png_file_is_not_shown(tmp_path, content):
    (tmp_path / "broken-cm.png").write_bytes(content)
    assert [gallery.pictures for gallery in galleries(tmp_path)] == [[]]


def test_links_are_not_followed(tmp_path):
    write_png(tmp_path / "elsewhere" / "secret.png")
    run = tmp_path / "run"
    run.mkdir()
    (run / "a-cm.png").symlink_to(tmp_path / "elsewhere" / "secret.png")
    (run / "explained").symlink_to(tmp_path / "elsewhere")
    assert galleries(run) == []


def test_a_picture_that_goes_while_they_are_collected_is_left_out(tmp_path, monkeypatch):
    write_png(tmp_path / "a-cm.png")
    found = run_pictures._png_files

    def then_removed(folder):
        yield from found(folder)
        (tmp_path / "a-cm.png").unlink()

    monkeypatch.setattr(run_pictures, "_png_files", then_removed)
    assert [(gallery.pictures, gallery.nb_left_out) for gallery in galleries(tmp_path)] == [([], 1)]
