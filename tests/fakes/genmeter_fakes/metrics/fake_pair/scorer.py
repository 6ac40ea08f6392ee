from genmeter.contract import Score


class Pair:
    def score(self, items, params):
        return [Score(float(item["pair"].values[0, 0]), flags=item["pair"].flags) for item in items]
