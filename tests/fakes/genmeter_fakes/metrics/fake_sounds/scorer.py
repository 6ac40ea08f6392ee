from genmeter.stats.setscores import frechet_score


class Sounds:
    """The Frechet distance of the levels of windows: several rows a file."""

    def score_set(self, prediction, reference, params):
        return frechet_score(prediction, reference, name="Sounds")
