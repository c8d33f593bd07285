"""Watch a run: an observer that collects losses and draws them when the run ends.

python examples/observer.py

Observers receive the events of `convoy.events`. They cannot change the run, and one that raises is
reported once and removed. With several processes they still run here, in this process.
"""

from matplotlib.figure import Figure

import convoy
from convoy.events import Ended, Event, Reported


class LossPlot:
    """Draws the training loss."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.epochs: list[float] = []
        self.losses: list[float] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Reported):
            self.epochs.append(event.epoch)
            self.losses.append(event.loss)
        elif isinstance(event, Ended):
            figure = Figure(layout="constrained")
            axes = figure.subplots()
            axes.plot(self.epochs, self.losses)
            axes.set(xlabel="epoch", ylabel="training loss")
            figure.savefig(self.file)


def main(output: str = "runs/observed", file: str = "loss.png", **options: object) -> None:
    plot = LossPlot(file)
    settings = {"model": "resnet8", "epochs": 1, "image_size": 16, **options}
    convoy.train(output=output, observers=[plot], **settings)
    print(f"{len(plot.losses)} reports drawn in {file}")


if __name__ == "__main__":
    main()
