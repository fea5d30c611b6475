"""Random numbers belong to jobs: the same whoever runs them, and the caller's own are left alone."""

from __future__ import annotations

import contextlib
import os
import random
import struct
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trw_pipeline import seeding
from trw_pipeline.seeding import JobSeeds, fresh_seed, generator, globals_lent, job_seed, seed_globals, seeded_globals

keys = st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.tuples(inner, inner), max_leaves=5)


def make_draw():
    """Returns a function of one number from each generator. Made here it travels by value, and imports no torch."""

    def draw(x, rng):
        import random

        import numpy as np

        return random.random(), float(np.random.random()), int(rng.integers(1 << 62))

    return draw


def make_draw_with_torch():
    def draw(x, rng):
        # torch is a global of this module, so a worker imports it when it receives the function.
        return random.random(), float(np.random.random()), float(torch.rand(1)), int(rng.integers(1 << 62))

    return draw


def drawn(executor, nb=12):
    for i in range(nb):
        executor.put(i)
    results = [executor.get(timeout=60) for _ in range(nb)]
    return [result.value for result in sorted(results, key=lambda result: result.ticket)]


# The functions


def test_a_job_seed_is_32_bytes():
    assert len(job_seed(1, (2, 3), "map", None)) == 32


@given(keys, keys)
def test_job_seeds_are_equal_only_for_equal_entropy(a, b):
    assert (job_seed(7, a) == job_seed(7, b)) == (repr(a) == repr(b))


@given(st.lists(keys, min_size=1, max_size=4), st.lists(st.integers() | st.booleans(), max_size=4).map(tuple))
def test_the_seeds_of_jobs_with_a_common_start_are_their_job_seeds(start, key):
    assert JobSeeds(*start)(key) == job_seed(*start, key)


def test_keys_of_numpys_integers_count_by_their_value():
    assert JobSeeds(np.int64(7), 1)((np.uint8(2), True)) == job_seed(7, 1, (2, 1))


def test_a_job_seed_is_the_same_in_every_program(program):
    result = program("""
        from trw_pipeline.seeding import job_seed
        print(job_seed(3, 1, (4, 5)).hex())
        """).finish()
    assert result.stdout.strip() == job_seed(3, 1, (4, 5)).hex()


def test_fresh_seeds_differ():
    assert len({fresh_seed() for _ in range(100)}) == 100
    assert all(0 <= fresh_seed() < 1 << 63 for _ in range(100))


def test_a_generator_is_keyed_by_the_whole_seed():
    """Written out by hand: eight words of 32 bits as the entropy of PCG64."""
    seed = job_seed(5)
    words = struct.unpack("<8I", seed)
    expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence(words))).random(4)
    assert np.array_equal(generator(seed).random(4), expected)
    last_bit_changed = seed[:-1] + bytes([seed[-1] ^ 1])
    assert not np.array_equal(generator(last_bit_changed).random(4), expected)


def test_seed_globals_seeds_all_three():
    numbers = []
    for _ in range(2):
        seed_globals(job_seed(8))
        numbers.append((random.random(), np.random.random(), torch.rand(1).item()))
    assert numbers[0] == numbers[1]


def test_neighbouring_seeds_share_no_draw():
    values = []
    for i in range(300):
        seed_globals(job_seed(8, i))
        values += [random.random(), np.random.random(), torch.rand(1).item()]
    assert len(set(values)) == 900


@pytest.fixture
def numpys_generator():
    """The generator that NumPy draws from; whatever a test puts in its place, it is back afterwards."""
    generator = np.random.get_bit_generator()
    yield generator
    np.random.set_bit_generator(generator)


def numpy_draws():
    return np.random.random(700).tolist(), np.random.standard_normal(3).tolist()


def expected_globals(seed):
    """Written out by hand: PCG64 begins at 128 bits of the seed, and draws the 624 words of two Mersenne Twisters."""
    words = np.random.PCG64(0)
    increment = 0x5851F42D4C957F2D14057B7EF767814F
    words.state = words.state | {"state": {"state": int.from_bytes(seed[:16], "little"), "inc": increment}}
    of_numpy, of_python = np.random.RandomState(0), random.Random()
    of_numpy.set_state(("MT19937", words.random_raw(312).view(np.uint32), 624))
    of_python.setstate((3, (*words.random_raw(312).view(np.uint32).tolist(), 624), None))
    return of_numpy.random_sample(700).tolist(), [of_python.random() for _ in range(700)]


def drawn_globals():
    return np.random.random(700).tolist(), [random.random() for _ in range(700)]


def test_both_twisters_are_seeded_with_all_bits_that_are_theirs():
    seed = job_seed(8)
    seed_globals(seed)
    assert drawn_globals() == expected_globals(seed)
    for byte in (0, 15):
        other = bytearray(seed)
        other[byte] ^= 1
        seed_globals(bytes(other))
        assert not set(map(str, drawn_globals())) & set(map(str, expected_globals(seed)))


class _OtherRandom(random.Random):
    """What a program may put in the place of the generator of `random`; its memory is not looked at."""


@pytest.mark.parametrize("kind", [random.Random, _OtherRandom])
def test_another_generator_in_its_place_is_seeded_with_the_same_numbers(monkeypatch, kind):
    other = kind(1)
    for name in ("random", "gauss", "getstate", "setstate", "seed"):
        monkeypatch.setattr(random, name, getattr(other, name))
    other.gauss(0, 1)  # leaves another one in reserve
    seed = job_seed(8)
    seed_globals(seed)
    assert [random.random() for _ in range(700)] == expected_globals(seed)[1]
    assert random.gauss(0, 1) != other.gauss(0, 1)
    seed_globals(seed)
    first = random.gauss(0, 1)
    seed_globals(seed)
    assert random.gauss(0, 1) == first


def test_a_normal_number_in_reserve_is_not_drawn_after_seeding():
    seed_globals(job_seed(8))
    expected = numpy_draws()
    np.random.standard_normal()
    seed_globals(job_seed(8))
    assert numpy_draws() == expected


def test_a_generator_whose_state_lies_otherwise_is_seeded_and_put_back_alike(monkeypatch):
    """As it would be with a NumPy that has another layout: nothing is written where it would do harm."""

    def found():
        np.random.seed(1)
        np.random.standard_normal()
        with seeded_globals(job_seed(8)):
            inside = numpy_draws()
        return inside, numpy_draws()

    expected = found()
    generator = seeding._numpy_global._found()[0]
    monkeypatch.setattr(seeding._NumpyGlobal, "_found", lambda self: (generator, None))
    assert found() == expected


def test_a_layout_that_is_not_what_numpy_says_is_not_written_to(monkeypatch, numpys_generator):
    class Lies(np.random.MT19937):
        pass

    np.random.set_bit_generator(Lies(3))
    assert seeding._NumpyGlobal()._found()[1] is None
    np.random.set_bit_generator(np.random.MT19937(3))
    assert seeding._NumpyGlobal()._found()[1] is not None
    monkeypatch.setattr(np, "array_equal", lambda *pair: False)
    assert seeding._NumpyGlobal()._found()[1] is None


def test_a_generator_that_the_program_exchanged_is_seeded_and_put_back(numpys_generator):
    seed_globals(job_seed(8))
    expected = numpy_draws()
    mine, twin = np.random.MT19937(3), np.random.RandomState(np.random.MT19937(3))
    np.random.set_bit_generator(mine)
    with seeded_globals(job_seed(8)):
        assert numpy_draws() == expected
    assert np.random.get_bit_generator() is mine
    assert np.random.random(700).tolist() == twin.random_sample(700).tolist()


def test_a_generator_that_a_job_exchanged_is_put_back(numpys_generator):
    np.random.seed(1)
    np.random.standard_normal()
    expected = np.random.RandomState(1)
    expected.standard_normal()
    with seeded_globals(job_seed(8)):
        np.random.set_bit_generator(np.random.PCG64(3))
        np.random.random()
    assert np.random.get_bit_generator() is numpys_generator
    assert numpy_draws() == (expected.random_sample(700).tolist(), expected.standard_normal(3).tolist())


def global_draws():
    return random.random(), np.random.random(), np.random.standard_normal(), torch.rand(1).item()


def test_seeded_globals_puts_the_callers_state_back():
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    np.random.standard_normal()  # leaves a second normal number waiting in the state
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    expected = global_draws()
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    with seeded_globals(job_seed(2)):
        inside = global_draws()
    assert global_draws() == expected
    assert inside != expected


def test_seeded_globals_puts_the_state_back_after_an_error():
    random.seed(1)
    expected = random.Random(1).random()
    with contextlib.suppress(KeyError), seeded_globals(job_seed(2)):
        random.random()
        raise KeyError
    assert random.random() == expected


def test_seeded_globals_may_be_nested():
    def draws_after(nested):
        with seeded_globals(job_seed(2)):
            if nested:
                with seeded_globals(job_seed(3)):
                    global_draws()
            return global_draws()

    assert draws_after(nested=True) == draws_after(nested=False)


def test_seeded_globals_seeds_as_seed_globals_does():
    with seeded_globals(job_seed(2)):
        inside = global_draws()
        seed_globals(job_seed(2))
        assert global_draws() == inside


def draws_in_a_thread(seed, found, begun):
    begun.set()
    with seeded_globals(seed):
        found += [global_draws() for _ in range(200)]


def test_blocks_of_several_threads_take_turns_and_put_back_what_was_before_them():
    def expected(seed):
        with seeded_globals(seed):
            return [global_draws() for _ in range(200)]

    seeds = [job_seed(number) for number in range(4)]
    alone = [expected(seed) for seed in seeds]
    state = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    found = [[] for _ in seeds]
    begun = threading.Event()
    with seeded_globals(job_seed(9)):
        mine = global_draws()
        threads = [
            threading.Thread(target=draws_in_a_thread, args=(*one, begun)) for one in zip(seeds, found, strict=True)
        ]
        for thread in threads:
            thread.start()
        begun.wait(30)
        threads[0].join(0.1)  # long enough for one that would not wait
        assert found == [[] for _ in seeds]
        seed_globals(job_seed(9))
        assert global_draws() == mine
    for thread in threads:
        thread.join(30)
    assert found == alone
    assert (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()) == state


def test_who_waits_for_another_thread_within_a_block_lets_it_have_its_turn():
    with seeded_globals(job_seed(2)):
        expected = [global_draws(), global_draws()]
    found = []
    with seeded_globals(job_seed(1)), seeded_globals(job_seed(2)):
        first = global_draws()
        thread = threading.Thread(target=draws_in_a_thread, args=(job_seed(3), found, threading.Event()))
        thread.start()
        with globals_lent():
            thread.join(30)
        assert len(found) == 200
        assert [first, global_draws()] == expected


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_copy_has_its_turn_though_another_thread_had_it():
    begun, gate = threading.Event(), threading.Event()

    def hold():
        with seeded_globals(job_seed(1)):
            begun.set()
            gate.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait(30)
    child = os.fork()
    if child == 0:
        with seeded_globals(job_seed(2)):
            os._exit(0)
    gate.set()
    thread.join(30)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# At the executor: SEED-1, SEED-2


@pytest.mark.parametrize("nb_workers", [1, 4])
def test_draws_are_the_same_to_the_bit_with_any_number_of_processes(executor_of, nb_workers):
    inline = drawn(executor_of(0, make_draw(), seed=9))
    assert drawn(executor_of(nb_workers, make_draw(), seed=9)) == inline


@pytest.mark.slow
def test_draws_of_torch_are_the_same_to_the_bit_in_processes(executor_of):
    inline = drawn(executor_of(0, make_draw_with_torch(), seed=9))
    assert drawn(executor_of(2, make_draw_with_torch(), seed=9)) == inline


@pytest.mark.slow
def test_a_job_that_is_the_first_to_import_torch_draws_its_own_numbers(program):
    """Inline and in each worker; and to the caller torch is then as if it had just been imported."""
    result = program("""
        import struct, sys
        from trw_pipeline.executors.job_executor import JobExecutor
        from trw_pipeline.seeding import job_seed

        def draw(x):
            import torch
            return float(torch.rand(1))

        def drawn(nb_workers):
            with JobExecutor(nb_workers, draw, seed=5, in_order=True) as executor:
                for i in range(6):
                    executor.put(i)
                return [executor.get(timeout=60).value for _ in range(6)]

        in_processes = drawn(2)
        print("torch" in sys.modules)
        inline = drawn(0)
        import torch
        of_jobs = [struct.unpack("<Q4IQ", job_seed(5, i))[-1] for i in range(6)]
        print(torch.default_generator.initial_seed() in of_jobs)
        print(inline == in_processes, len(set(inline)))
        print([type(finder).__name__ for finder in sys.meta_path if "trw" in type(finder).__module__])
        """).finish()
    assert result.stdout.splitlines() == ["False", "False", "True 6", "[]"]


@pytest.mark.slow
def test_draws_are_the_same_with_every_start_method(executor_of, start_method):
    inline = drawn(executor_of(0, make_draw(), seed=9))
    assert drawn(executor_of(2, make_draw(), seed=9, start_method=start_method)) == inline


def test_no_two_jobs_share_a_draw(executor_of):
    """Four workers, three epochs: the tickets go on counting over a reset."""
    executor = executor_of(4, make_draw(), seed=9)
    values = []
    for _ in range(3):
        values += drawn(executor)
        executor.reset()
    assert len({number for row in values for number in row}) == 36 * 3


def test_another_seed_gives_other_draws(executor_of):
    assert drawn(executor_of(0, make_draw(), seed=9))[0] != drawn(executor_of(0, make_draw(), seed=10))[0]


def test_seeds_of_any_integer_type_are_the_same(executor_of):
    assert drawn(executor_of(0, make_draw(), seed=np.int64(9))) == drawn(executor_of(0, make_draw(), seed=9))


@pytest.mark.parametrize("nb_workers", [0, 1])
def test_without_a_seed_two_executors_differ(executor_of, nb_workers):
    assert drawn(executor_of(nb_workers, make_draw()), 2) != drawn(executor_of(nb_workers, make_draw()), 2)


def test_a_seed_may_come_with_the_job(executor_of):
    executor = executor_of(1, make_draw(), seed=1, in_order=True)
    for item in range(3):
        executor.put(item, seed=job_seed("the key"))
    first, second, third = (executor.get(timeout=30).value for _ in range(3))
    assert first == second == third


def test_in_threads_the_rng_keyword_is_reproducible(executor_of):
    threads = drawn(executor_of(3, make_draw(), backend="thread", seed=9))
    assert [row[2] for row in threads] == [row[2] for row in drawn(executor_of(0, make_draw(), seed=9))]


def test_threads_leave_the_global_generators_to_their_owner(executor_of):
    random.seed(1)
    np.random.seed(1)
    executor = executor_of(2, lambda x, rng: float(rng.random()), backend="thread", seed=9)
    drawn(executor)
    assert (random.random(), np.random.random()) == (random.Random(1).random(), np.random.RandomState(1).random())


def test_inline_jobs_leave_the_callers_generators_as_they_were(executor_of):
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = global_draws()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    drawn(executor_of(0, make_draw_with_torch(), seed=9))
    assert global_draws() == expected


def test_a_function_without_the_keyword_gets_none(executor_of):
    assert drawn(executor_of(0, lambda x: x), 1) == [0]


def test_every_function_of_a_list_that_asks_shares_the_generator(executor_of):
    """Else two augmentations of one sample would draw the same numbers."""

    def first(x, rng):
        return [rng.random()]

    def second(values, *, rng):
        return [*values, rng.random()]

    (value,) = drawn(executor_of(0, [first, second], seed=3), 1)
    assert value[0] != value[1]


@given(st.integers(0, 255), st.integers(0, 255))
def test_the_seed_of_a_job_does_not_depend_on_the_kind_of_its_numbers(a, b):
    assert job_seed(np.int64(a), "s", (np.uint8(b), None)) == job_seed(a, "s", (b, None))
