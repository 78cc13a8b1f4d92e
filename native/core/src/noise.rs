//! The key exchange of connections that are secured by the cluster secret: Noise `NNpsk0`.
//!
//! Both sides contribute a key that lives as long as the handshake, so a secret that leaks later
//! opens no session that was recorded before. The secret is the pre-shared key: a peer without it
//! can neither make a message that reads nor read one.

use snow::{Builder, HandshakeState};

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
pub const KEY_BYTES: usize = 32;
/// An ephemeral key and the tag of an empty payload.
pub const MESSAGE_BYTES: usize = 48;

#[derive(Debug, thiserror::Error)]
pub enum NoiseError {
    #[error("the message of the key exchange does not read with this secret")]
    Unreadable,
    #[error("the key exchange is not at this step")]
    OutOfTurn,
    #[error("the key exchange cannot begin: {0}")]
    Unusable(snow::Error),
}

/// One side of a key exchange: each side writes one message and reads one, the dialer first.
#[derive(Debug)]
pub struct KeyExchange(HandshakeState);

impl KeyExchange {
    /// `context` must be the same on both sides.
    pub fn new(psk: &[u8; KEY_BYTES], context: &[u8], is_dialer: bool) -> Result<Self, NoiseError> {
        let params = PATTERN.parse().map_err(NoiseError::Unusable)?;
        let begin = || {
            let builder = Builder::new(params).psk(0, psk)?.prologue(context)?;
            if is_dialer {
                builder.build_initiator()
            } else {
                builder.build_responder()
            }
        };
        begin().map(Self).map_err(NoiseError::Unusable)
    }

    pub fn write(&mut self) -> Result<[u8; MESSAGE_BYTES], NoiseError> {
        let mut message = [0; MESSAGE_BYTES];
        match self.0.write_message(&[], &mut message) {
            Ok(MESSAGE_BYTES) => Ok(message),
            Ok(_) | Err(_) => Err(NoiseError::OutOfTurn),
        }
    }

    pub fn read(&mut self, message: &[u8]) -> Result<(), NoiseError> {
        if !self.0.is_my_turn() && !self.0.is_handshake_finished() {
            return match self.0.read_message(message, &mut [0; MESSAGE_BYTES]) {
                Ok(0) => Ok(()),
                Ok(_) | Err(_) => Err(NoiseError::Unreadable),
            };
        }
        Err(NoiseError::OutOfTurn)
    }

    /// The keys for what the dialer and what the acceptor sends, once both messages are through.
    pub fn keys(&mut self) -> Result<([u8; KEY_BYTES], [u8; KEY_BYTES]), NoiseError> {
        if !self.0.is_handshake_finished() {
            return Err(NoiseError::OutOfTurn);
        }
        Ok(self.0.dangerously_get_raw_split())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn sides(dialer: u8, acceptor: u8) -> (KeyExchange, KeyExchange) {
        let side = |secret, is_dialer| KeyExchange::new(&[secret; 32], b"test", is_dialer).unwrap();
        (side(dialer, true), side(acceptor, false))
    }

    #[test]
    fn both_sides_get_the_same_two_keys() {
        let (mut dialer, mut acceptor) = sides(1, 1);
        acceptor.read(&dialer.write().unwrap()).unwrap();
        dialer.read(&acceptor.write().unwrap()).unwrap();
        let keys = dialer.keys().unwrap();
        assert_eq!(keys, acceptor.keys().unwrap());
        assert_ne!(keys.0, keys.1);
    }

    #[test]
    fn a_message_under_another_secret_or_an_altered_one_does_not_read() {
        let (mut dialer, mut acceptor) = sides(1, 2);
        let message = dialer.write().unwrap();
        assert!(matches!(acceptor.read(&message), Err(NoiseError::Unreadable)));
        let (mut dialer, mut acceptor) = sides(1, 1);
        let mut message = dialer.write().unwrap();
        message[0] ^= 1;
        assert!(matches!(acceptor.read(&message), Err(NoiseError::Unreadable)));
        assert!(matches!(acceptor.read(&[]), Err(NoiseError::Unreadable)));
    }

    #[test]
    fn two_sessions_under_one_secret_have_different_keys() {
        let keys = || {
            let (mut dialer, mut acceptor) = sides(1, 1);
            acceptor.read(&dialer.write().unwrap()).unwrap();
            dialer.read(&acceptor.write().unwrap()).unwrap();
            dialer.keys().unwrap()
        };
        assert_ne!(keys(), keys());
    }

    #[test]
    fn no_step_can_be_repeated_or_skipped() {
        let (mut dialer, mut acceptor) = sides(1, 1);
        assert!(matches!(acceptor.write(), Err(NoiseError::OutOfTurn)));
        assert!(matches!(dialer.read(&[0; MESSAGE_BYTES]), Err(NoiseError::OutOfTurn)));
        assert!(dialer.keys().is_err());
        let message = dialer.write().unwrap();
        assert!(dialer.write().is_err());
        acceptor.read(&message).unwrap();
        assert!(matches!(acceptor.read(&message), Err(NoiseError::OutOfTurn)));
    }
}
