//! Why a request failed, as the classes users see in their results.

use std::borrow::Cow;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    Dns,
    Connect,
    Tls,
    /// The proxy cannot be reached, or refuses to pass a connection on.
    Proxy,
    Timeout,
    Reset,
    Protocol,
    TooLarge,
    /// A datagram that was not answered in time.
    Lost,
}

impl ErrorClass {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Proxy => "proxy",
            Self::Timeout => "timeout",
            Self::Reset => "reset",
            Self::Protocol => "protocol",
            Self::TooLarge => "too_large",
            Self::Lost => "lost",
        }
    }
}

/// Codes of gRPC: as the standard names them, and as classes of errors. The code is the place.
const GRPC_CODES: [(&str, &str); 17] = [
    ("OK", "grpc_ok"),
    ("CANCELLED", "grpc_cancelled"),
    ("UNKNOWN", "grpc_unknown"),
    ("INVALID_ARGUMENT", "grpc_invalid_argument"),
    ("DEADLINE_EXCEEDED", "grpc_deadline_exceeded"),
    ("NOT_FOUND", "grpc_not_found"),
    ("ALREADY_EXISTS", "grpc_already_exists"),
    ("PERMISSION_DENIED", "grpc_permission_denied"),
    ("RESOURCE_EXHAUSTED", "grpc_resource_exhausted"),
    ("FAILED_PRECONDITION", "grpc_failed_precondition"),
    ("ABORTED", "grpc_aborted"),
    ("OUT_OF_RANGE", "grpc_out_of_range"),
    ("UNIMPLEMENTED", "grpc_unimplemented"),
    ("INTERNAL", "grpc_internal"),
    ("UNAVAILABLE", "grpc_unavailable"),
    ("DATA_LOSS", "grpc_data_loss"),
    ("UNAUTHENTICATED", "grpc_unauthenticated"),
];

/// Name and error class of a gRPC code; the standard takes an unheard-of code for UNKNOWN.
#[must_use]
pub fn grpc_code(code: u8) -> (&'static str, &'static str) {
    GRPC_CODES.get(usize::from(code)).copied().unwrap_or(("UNKNOWN", "grpc_unknown"))
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {detail}", class.name())]
pub struct Failure {
    pub class: ErrorClass,
    pub detail: Cow<'static, str>,
}

impl Failure {
    pub fn new(class: ErrorClass, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { class, detail: detail.into() }
    }

    pub fn protocol(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorClass::Protocol, detail)
    }

    #[must_use]
    pub fn reset(error: &std::io::Error) -> Self {
        Self::new(ErrorClass::Reset, error.to_string())
    }
}
