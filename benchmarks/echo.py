"""What a message costs without flwr_fbo: the deployment example's own work, echoed.

The same libraries as its client; a message of a round evaluates one setting.
"""

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from sklearn.svm import SVC

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer with what came."""
    if message.content.config_records["config"]["evaluates"]:
        with np.load(str(context.node_config["data"])) as file:
            data = dict(file)
        model = SVC(C=1.0, gamma=1e-3).fit(data["X_train"], data["y_train"])
        model.score(data["X_validation"], data["y_validation"])
    return Message(message.content, reply_to=message)
