"""GGUF files: the same contents as gguf's own reader finds, and a sentence for whatever is wrong with them."""

import errno
import io
import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import DormouseError, FormatError, UnsupportedError
from engine.formats.binary import ByteReader
from engine.formats.gguf import open_gguf
from tests.clock import best_of_three

ALIGNMENT = 64
Q8_0 = gguf.GGMLQuantizationType.Q8_0
TENSORS = {
    "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b.weight": np.arange(24, dtype=np.float16).reshape(2, 3, 4),
    "c.weight": gguf.quantize(np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64), Q8_0),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with a value of every kind and tensors of three types."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "test")
    writer.add_custom_alignment(ALIGNMENT)
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -30000)
    writer.add_uint32("u32", 4_000_000_000)
    writer.add_int32("i32", -2_000_000_000)
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -(2**62))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("bool", True)
    writer.add_string("string", "睡鼠")
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("floats", [0.25, -0.5])
    writer.add_array("bools", [True, False])
    writer.add_array("strings", ["", "a", "é\0"])
    for name, tensor in TENSORS.items():
        writer.add_tensor(name, tensor, raw_dtype=Q8_0 if tensor.dtype == np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    return tmp_path / "changed.gguf"


def test_values(tiny: bytes, changed: Path) -> None:
    changed.write_bytes(tiny)
    with open_gguf(changed) as file:
        assert file.version == 3
        metadata = dict(file.metadata)
        arrays = {key: metadata.pop(key) for key in ("ints", "floats", "bools")}
        assert metadata == {
            "general.architecture": "test",
            "general.alignment": ALIGNMENT,
            "u8": 200,
            "i8": -100,
            "u16": 60000,
            "i16": -30000,
            "u32": 4_000_000_000,
            "i32": -2_000_000_000,
            "u64": 2**63,
            "i64": -(2**62),
            "f32": 0.5,
            "f64": 0.1,
            "bool": True,
            "string": "睡鼠",
            "strings": ["", "a", "é\0"],
        }
        assert metadata["bool"] is True
        assert {key: (array.dtype.name, array.tolist()) for key, array in arrays.items()} == {
            "ints": ("int32", [1, -2, 3]),
            "floats": ("float32", [0.25, -0.5]),
            "bools": ("bool", [True, False]),
        }


def test_tensors(tiny: bytes, changed: Path) -> None:
    changed.write_bytes(tiny)
    with open_gguf(changed) as file:
        assert {name: info.shape for name, info in file.tensors.items()} == {
            "a.weight": (2, 3),
            "b.weight": (2, 3, 4),
            "c.weight": (2, 64),
        }
        for name, tensor in TENSORS.items():
            found = file.tensor_bytes(name)
            assert file.tensors[name].offset % ALIGNMENT == 0
            assert found.tobytes() == tensor.tobytes()
    assert found.tobytes() == tensor.tobytes()  # they outlive the file


def test_typed_values(tiny: bytes, changed: Path) -> None:
    changed.write_bytes(tiny)
    with open_gguf(changed) as file:
        assert file.value("string", str) == "睡鼠"
        assert file.value("nothing", int, 3) == 3
        with pytest.raises(FormatError, match="lacks the metadata nothing"):
            file.value("nothing", int)
        with pytest.raises(FormatError, match="has a text as its metadata string, not a whole number"):
            file.value("string", int)
        with pytest.raises(FormatError, match="has a yes or no as its metadata bool, not a whole number"):
            file.value("bool", int)
        with pytest.raises(FormatError, match="lacks the tensor nothing"):
            file.tensor_bytes("nothing")


def test_equals_ggufs_own_reader(smollm2: Path) -> None:
    reader = gguf.GGUFReader(smollm2)
    with open_gguf(smollm2) as file:
        theirs = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        assert set(file.metadata) == set(theirs)
        for key, field in theirs.items():
            ours = file.metadata[key]
            assert (ours.tolist() if isinstance(ours, np.ndarray) else ours) == field.contents()
        assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
        for tensor in reader.tensors:
            info = file.tensors[tensor.name]
            assert info.shape == tuple(tensor.shape.tolist()[::-1])
            assert (info.type, info.offset, info.nbytes) == (
                tensor.tensor_type,
                tensor.data_offset,
                tensor.n_bytes,
            )
            assert np.array_equal(file.tensor_bytes(tensor.name), tensor.data.reshape(-1).view(np.uint8))


@pytest.mark.clock
def test_a_large_vocabulary_opens_at_once(gemma3: Path) -> None:
    def read() -> None:
        with open_gguf(gemma3) as file:
            assert len(file.value("tokenizer.ggml.tokens", list)) == 262_144

    assert best_of_three(read) < 0.5


def test_version_2_is_the_same(tiny: bytes, changed: Path) -> None:
    changed.write_bytes(tiny[:4] + struct.pack("<I", 2) + tiny[8:])
    with open_gguf(changed) as file:
        assert file.version == 2
        assert list(file.tensors) == list(TENSORS)


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (b"", FormatError, "is empty"),
        (b"GG", FormatError, "not a GGUF model file"),
        (b"PK\3\4 and more", FormatError, "not a GGUF model file"),
        (b"GGUF" + struct.pack("<I", 1), UnsupportedError, "version 1"),
        (b"GGUF" + struct.pack("<I", 99), UnsupportedError, "version 99"),
        (b"GGUF" + struct.pack(">I", 3), UnsupportedError, "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), FormatError, "claims 1152921504606846976 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), FormatError, "claims 1152921504606846976 metadata entries"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62) + bytes(9), FormatError, "inside a string"),
    ],
)
def test_what_is_no_gguf_file(changed: Path, data: bytes, kind: type[DormouseError], words: str) -> None:
    changed.write_bytes(data)
    with pytest.raises(kind, match=words) as caught:
        open_gguf(changed)
    assert str(changed) in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"\3\0\0\0\0\0\0\0i16", b"\3\0\0\0\0\0\0\0u16", "the metadata 'u16' twice"),
        (b"b.weight", b"a.weight", "the tensor 'a.weight' twice"),
        (b"u8" + struct.pack("<I", 0), b"u8" + struct.pack("<I", 77), "'u8' is of the unknown type 77"),
        (b"alignment\4\0\0\0\x40", b"alignment\4\0\0\0\x41", "alignment 65 is not a power of two"),
        (b"a.weight\2", b"a.weight\5", "claims 5 dimensions"),
        ("睡".encode(), b"\xff\xff\xff", "not valid UTF-8"),
        (struct.pack("<QQ", 64, 2), struct.pack("<QQ", 65, 2), "not a multiple of 32"),
        (struct.pack("<QQ", 64, 2), struct.pack("<QQ", 64, 2**40), "before the end of the tensor 'c.weight'"),
    ],
)
def test_a_damaged_file(tiny: bytes, changed: Path, old: bytes, new: bytes, words: str) -> None:
    assert tiny.count(old) == 1
    changed.write_bytes(tiny.replace(old, new))
    with pytest.raises(FormatError, match=words):
        open_gguf(changed)


def test_an_unknown_type_of_tensor_is_named(tiny: bytes, changed: Path) -> None:
    place = tiny.index(b"a.weight") + len("a.weight") + 4 + 2 * 8
    changed.write_bytes(tiny[:place] + struct.pack("<I", 99) + tiny[place + 4 :])
    with pytest.raises(UnsupportedError, match=r"tensor 'a.weight' has type 99, which this version doesn't know"):
        open_gguf(changed)


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.gguf", tmp_path):
        with pytest.raises(DormouseError, match="can't be opened") as caught:
            open_gguf(path)
        assert str(path) in str(caught.value)


def test_a_file_that_is_cut_while_it_is_open(tiny: bytes, changed: Path) -> None:
    changed.write_bytes(tiny)
    with open_gguf(changed) as file:
        os.truncate(changed, file.tensors["c.weight"].offset + 1)
        assert file.tensor_bytes("a.weight").tobytes() == TENSORS["a.weight"].tobytes()
        with pytest.raises(FormatError, match="was cut short while it was read") as caught:
            file.tensor_bytes("c.weight")
        assert str(changed) in str(caught.value)


def test_a_header_that_is_cut_while_it_is_read(tiny: bytes, changed: Path) -> None:
    changed.write_bytes(tiny)
    with io.FileIO(changed) as file:
        cursor = ByteReader(file, "the one")
        os.truncate(changed, 10)
        with pytest.raises(FormatError, match="the one was cut short while it was read"):
            cursor.take(4)


def test_a_file_that_cannot_be_read(tiny: bytes, changed: Path) -> None:
    class Failing(io.FileIO):
        def readinto(self, buffer: object) -> int:
            raise OSError(errno.EIO, "Input/output error")

    changed.write_bytes(tiny)
    with Failing(changed) as file, pytest.raises(DormouseError, match=r"the one can't be read: Input/output error\."):
        ByteReader(file, "the one").take(4)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(changed: Path) -> None:
    os.mkfifo(changed)
    with pytest.raises(DormouseError, match="can't be opened: it is no file"):
        open_gguf(changed)


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_other_error_escapes(tiny: bytes, changed: Path, data: st.DataObject) -> None:
    header = bytearray(tiny)
    size = tiny.index(b"c.weight") + 50
    for place in data.draw(st.lists(st.integers(0, size), max_size=4)):
        header[place] = data.draw(st.integers(0, 255))
    length = data.draw(st.one_of(st.just(len(tiny)), st.integers(0, len(tiny))))
    changed.write_bytes(header[:length])
    try:
        with open_gguf(changed) as file:
            for name in file.tensors:
                assert file.tensor_bytes(name).nbytes == file.tensors[name].nbytes
    except (FormatError, UnsupportedError) as error:
        assert str(changed) in str(error)  # noqa: PT017
