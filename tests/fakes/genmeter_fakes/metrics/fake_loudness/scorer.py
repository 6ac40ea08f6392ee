import numpy as np

from genmeter.contract import Score


class Loudness:
    def score(self, items, params):
        return [
            Score(float(np.average(item["audio"].values[:, 0], weights=item["audio"].weights)), item["audio"].detail)
            for item in items
        ]
