"""What TLS says when it refuses a connection, in words: whose certificate, and what is wrong."""

import ssl
from typing import Final

from hyperscale.wire.errors import PeerProtocolError, RefusalReason

# What a peer says about the certificate of this side.
_ALERTS: Final = {
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it has expired, or is not valid yet by the peer's clock",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust the authority that signed it",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "none was sent, and the peer requires one",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it is not valid",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it is not valid",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "it was revoked",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it may not be used for this",
}
_OWN_HINT = (
    "security.certificate must be valid now and signed by the authority that the peer trusts; "
    "'hyperscale certs' makes a new one"
)
RENEW_HINT = "make a new one with 'hyperscale certs', and restart this node with it"
_PEER_HINT = (
    "the peer needs a certificate that is valid now, names its host and is signed by "
    "security.authority; check the clocks of both machines"
)
_TLS_HINT = "both sides must use certificates, or neither"


def certificate_error(error: ssl.SSLError) -> PeerProtocolError:
    """Return the error for a connection that TLS refused."""
    if isinstance(error, ssl.SSLCertVerificationError):
        text, hint = f"the certificate of the peer was refused: {error.verify_message}", _PEER_HINT
    elif error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        text, hint = "the peer sent no certificate", _PEER_HINT
    elif error.reason in _ALERTS:
        why = _ALERTS[error.reason]
        text, hint = f"the certificate of this side was refused: {why}", _OWN_HINT
    else:
        text, hint = f"TLS failed: {error.reason or error}", _TLS_HINT
    return PeerProtocolError(text, RefusalReason.CERTIFICATE, hint=hint)
