from threading import Thread

from PySide6.QtCore import QObject, QThread, Slot

from app.bridge import Bridge
from engine.events import ModelLoading

N = 2000


class Receiver(QObject):
    def __init__(self) -> None:
        super().__init__()
        self.received: list[int] = []
        self.threads: set[QThread] = set()

    @Slot(object)
    def take(self, event: ModelLoading) -> None:
        self.received.append(event.done)
        self.threads.add(QThread.currentThread())


def test_events_of_other_threads_arrive_in_order_in_the_gui_thread(qtbot) -> None:
    bridge, receiver = Bridge(), Receiver()
    bridge.posted.connect(receiver.take)
    thread = Thread(target=lambda: [bridge.post(ModelLoading(1, None, i, N)) for i in range(N)])
    thread.start()
    qtbot.waitUntil(lambda: len(receiver.received) == N)
    thread.join()
    assert receiver.received == list(range(N))
    assert receiver.threads == {QThread.currentThread()}


def test_signals_with_true_do_not_wear_out(qtbot) -> None:
    # PySide6 6.12.0 on Python 3.11 lost a reference to True per emitted signal
    bridge, received = Bridge(), []
    bridge.posted.connect(received.append)
    for _ in range(N):
        bridge.posted.emit(True)
    assert received == [True] * N
