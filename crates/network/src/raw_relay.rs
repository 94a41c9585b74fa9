//! Bytes of any protocol, relayed as they are. Where a sandbox has secrets, those of the program are watched: a
//! placeholder among them ends the connection.

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, copy_bidirectional_with_sizes, split};
use tokio::net::TcpStream;

use crate::connection::RelayError;
use crate::patterns::StreamWatch;
use crate::stream::GuestStream;

/// How much is copied at once.
const COPY_BYTES: usize = 64 * 1024;

/// Relays until both sides have ended.
pub async fn relay_bytes(mut guest: GuestStream, mut socket: TcpStream) -> Result<(), RelayError> {
    copy_bidirectional_with_sizes(&mut guest, &mut socket, COPY_BYTES, COPY_BYTES).await?;
    Ok(())
}

/// The same, until something passes that must not. Nothing is held back meanwhile: the other side of an unknown
/// protocol may wait for the very last byte.
pub async fn relay_watched(
    guest: GuestStream,
    mut socket: TcpStream,
    mut watch: StreamWatch,
) -> Result<(), RelayError> {
    let (mut from_guest, mut to_guest) = split(guest);
    let (mut from_server, mut to_server) = socket.split();
    let outbound = async {
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            let count = from_guest.read(&mut buffer).await?;
            if count == 0 {
                break;
            }
            let data = &buffer[..count];
            watch.check(data).map_err(|reason| RelayError::Denied(reason.into()))?;
            to_server.write_all(data).await?;
        }
        to_server.shutdown().await?;
        Ok::<(), RelayError>(())
    };
    let inbound = async {
        copy(&mut from_server, &mut to_guest).await?;
        to_guest.shutdown().await?;
        Ok::<(), RelayError>(())
    };
    tokio::try_join!(outbound, inbound)?;
    Ok(())
}
