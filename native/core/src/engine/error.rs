//! Why a request failed, as the classes users see in their results.

use std::borrow::Cow;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    Dns,
    Connect,
    Tls,
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
            Self::Timeout => "timeout",
            Self::Reset => "reset",
            Self::Protocol => "protocol",
            Self::TooLarge => "too_large",
            Self::Lost => "lost",
        }
    }
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
