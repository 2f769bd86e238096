"""What a site tunes, and on which data. Its data and its trials never leave it."""

from flwr.app import Context
from sklearn.svm import SVC

from flwr_fbo import Objective, Trial
from flwr_fbo.lab.datasets.base import Split
from flwr_fbo.lab.datasets.digits import partition


def load_site(context: Context) -> Split:
    """Return this site's data; here its share of scikit-learn's digits."""
    node = context.node_config
    return partition(int(node["partition-id"]), int(node["num-partitions"]), seed=0)


def make_objective(context: Context) -> Objective:
    """Return this site's objective: the validation accuracy of an SVM."""
    data = load_site(context)

    def accuracy(trial: Trial) -> float:
        model = SVC(C=trial["C"], gamma=trial["gamma"])
        model.fit(data.X_train, data.y_train)
        return float(model.score(data.X_validation, data.y_validation))

    return accuracy
