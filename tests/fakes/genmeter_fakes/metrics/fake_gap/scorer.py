import numpy as np

from genmeter.contract import SetScore, Unscored


class Gap:
    """Distance of the sets' means; a row's influence is its own distance from the prediction mean."""

    def score_set(self, prediction, reference, params):
        if len(prediction.values) < 2 or len(reference.values) < 2:
            return Unscored("too_few_samples", "both sets need 2 rows", "score more samples")
        means = [np.asarray(rows.values, dtype=np.float64).mean(axis=0) for rows in (prediction, reference)]
        rows = [{"influence": float(np.linalg.norm(row - means[0]))} for row in prediction.values]
        detail = {"n_prediction": len(prediction.values), "n_reference": len(reference.values)}
        return SetScore(float(np.linalg.norm(means[0] - means[1])), detail, rows)
