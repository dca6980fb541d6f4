"""The library: what an entry says of itself, and that nothing gets lost between threads."""

import threading

import pytest

from app.errors import NotReady, UnknownEntry
from app.library import Entry, Library
from app.problems import Problem


def fill(library: Library, document) -> Entry:
    page_ids = tuple(tuple(range(len(page.text))) for page in document.pages)
    return library.fill(library.open(document.name).id, document, page_ids, ())


def test_an_entry_is_reading_then_ready(manual):
    """While a file is read its entry is there, without pages or tokens."""
    library = Library()
    opened = library.open("manual.pdf")
    assert library.entries() == (opened,)
    assert (opened.status, opened.n_pages, opened.n_tokens, opened.is_chosen) == ("reading", 0, 0, False)
    ready = library.fill(opened.id, manual, ((1,), (1, 2), (1, 2, 3)), ("no text on page 3",))
    assert (ready.status, ready.n_pages, ready.n_tokens, ready.is_chosen) == ("ready", 4, 6, True)
    assert ready.warnings == ("no text on page 3",)
    assert library.entries() == (ready,)


def test_selected_pages_alone_count(manual):
    """Indices are physical; the page without text takes no tokens and no place."""
    library = Library()
    entry = library.fill(library.open("manual.pdf").id, manual, ((1,), (1, 2), (1, 2, 3)), ())
    chosen = library.select(entry.id, (2, 3, 4))
    assert (chosen.n_tokens, [page.index for page in chosen.pages]) == (5, [2, 4])
    assert library.chosen() == ((chosen, ((1, 2), (1, 2, 3))),)
    assert library.select(entry.id, None).n_tokens == 6


def test_unchecked_failed_and_empty_entries_are_not_asked_about(manual, tree):
    """Only what is checked, ready and not empty goes into a prompt."""
    library = Library()
    first, second = fill(library, manual), fill(library, tree)
    library.fail(library.open("broken.pdf").id, Problem("It is broken.", "Mend it."))
    library.check(first.id, False)
    assert [entry.id for entry, _ in library.chosen()] == [second.id]
    library.select(second.id, ())
    assert library.chosen() == ()


def test_the_same_file_twice_is_one_entry(manual, tree):
    """Dropping a file again gives the entry it has; another file of that name does not."""
    library = Library()
    first = fill(library, manual)
    assert fill(library, manual) == first
    assert len(library.entries()) == 1
    other = library.fill(library.open("manual.pdf").id, tree, ((), ()), ())
    assert library.entries() == (first, other)


def test_what_is_gone_is_named():
    """Every call with an id that is not there says so."""
    library = Library()
    entry = library.open("a")
    library.remove(entry.id)
    for call in (library.entry, library.remove, lambda entry_id: library.check(entry_id, True)):
        with pytest.raises(UnknownEntry):
            call(entry.id)


def test_pages_of_an_unread_file_cannot_be_chosen():
    """There is nothing to choose from yet."""
    library = Library()
    with pytest.raises(NotReady):
        library.select(library.open("a").id, (1,))


def test_threads_do_not_lose_entries(manual):
    """Eight threads add, check and remove at once; what they kept is there."""
    library = Library()

    def work() -> None:
        for _ in range(50):
            kept, dropped = library.open("a"), library.open("b")
            library.check(kept.id, False)
            library.remove(dropped.id)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(library.entries()) == 400
    assert not any(entry.checked for entry in library.entries())
