"""How likely a picture's tokens are under plain decoding's own distribution."""

from ssd_core.distill.likelihood import negative_log_likelihood

__all__ = ["negative_log_likelihood"]
