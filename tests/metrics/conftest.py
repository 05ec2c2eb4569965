"""No deadline for an example: the machine may be busy."""

import hypothesis

hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")
