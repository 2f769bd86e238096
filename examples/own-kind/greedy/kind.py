"""What such a study keeps, and where the code that shows it is."""

from flwr_fbo.privacy.guarantee import EXAMPLE
from flwr_fbo.study.kinds import SERVER_FILE, JournalKind, Kind

SITE = JournalKind(
    "epsilon-greedy",  # the `kind` of this journal: no other journal may have it
    "epsilon-greedy-{study_id}.sqlite",
    at_site=True,  # its notes of charges prove them
    note="last-epsilon-greedy",
    is_irreplaceable=True,  # the noise of the site's releases is in it
    ledger="greedy.report:SITE_LEDGER",
    page="greedy.report:site_page",
)
SERVER = JournalKind("greedy-server", SERVER_FILE, ledger="greedy.report:SERVER_LEDGER")
GREEDY = Kind("epsilon-greedy", (SITE, SERVER), units=(EXAMPLE,))
