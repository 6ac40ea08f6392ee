from genmeter.stats.setscores import frechet_score


class Spread:
    """The Frechet distance of mean colours: a set metric with all that real ones carry."""

    def score_set(self, prediction, reference, params):
        return frechet_score(prediction, reference, name="Spread")
