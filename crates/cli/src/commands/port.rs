//! `stockade port`: ports of this host that lead to servers in a persistent sandbox. Each connection is carried
//! through the sandbox's supervisor and the agent's pipe; nothing is opened in the walls for it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use serde_json::json;
use stockade_core::{Error, ErrorCode, Result, SandboxId};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::config::Settings;
use crate::daemon::client::SupervisorConnection;
use crate::daemon::message::{SandboxNetworkRequest, SupervisorReply, SupervisorRequest};
use crate::daemon::port_stream::carry_stream;
use crate::daemon::sandbox_directory::SandboxDirectory;
use crate::daemon::wire_error::out_of_turn;
use crate::terminal::interrupts::{Interrupts, exit_code};
use crate::terminal::printer::Printer;

const PORT_OPERATION: &str = "port";
const NOT_A_PORT: &str = "is not a port: give `PORT` or `PORT:LOCAL`, such as 8080:9000";
/// Connections at once: half of what a supervisor serves. Others wait to be accepted.
const MAX_CONNECTIONS: usize = 128;
/// Pause after a connection that could not be accepted: out of descriptors, most likely.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Which sandbox and which ports.
#[derive(Debug, Args)]
pub struct PortArgs {
    /// The sandbox.
    #[arg(value_name = "ID")]
    id: SandboxId,
    /// Port of the sandbox, and of this host if it is to be another one; 0 takes any that is free.
    #[arg(value_name = "PORT[:LOCAL]", required = true)]
    ports: Vec<ForwardedPort>,
    /// Address of this host to listen at. With another than a loopback address, others on the network
    /// reach the sandbox's server too.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    bind: IpAddr,
}

/// A port of the sandbox, and the one of this host that leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ForwardedPort {
    inside: u16,
    local: u16,
}

impl std::str::FromStr for ForwardedPort {
    type Err = String;

    fn from_str(given: &str) -> std::result::Result<Self, String> {
        let (inside, local) = given.split_once(':').unwrap_or((given, given));
        let ports: Option<(u16, u16)> = inside.parse().ok().zip(local.parse().ok());
        match ports {
            Some((inside, local)) if inside != 0 => Ok(Self { inside, local }),
            Some(_) | None => Err(NOT_A_PORT.into()),
        }
    }
}

/// A port that is forwarded.
struct Forward {
    listener: TcpListener,
    address: SocketAddr,
    port: u16,
    failure_told: AtomicBool,
}

/// What all connections share.
struct Forwarding {
    place: SandboxDirectory,
    sandbox: SandboxId,
    slots: Arc<Semaphore>,
    printer: Printer,
}

/// Forwards until a signal or the end of the sandbox.
pub async fn port(args: PortArgs, printer: &Printer) -> Result<i32> {
    let place = SandboxDirectory::open(&Settings::load(None, printer)?)?;
    // Kept open: its end is the sandbox's, and until then the sandbox is in use.
    let mut watched = place.reach(&args.id, PORT_OPERATION).await?;
    let prepare = SupervisorRequest::Network(SandboxNetworkRequest::PreparePorts);
    let (SupervisorReply::Done, _) = watched.ask(&prepare).await? else {
        return Err(out_of_turn(PORT_OPERATION));
    };
    let mut forwards = Vec::new();
    for port in &args.ports {
        forwards.push(Forward::open(args.bind, *port).await?);
    }
    let mut interrupts = Interrupts::listen()?;
    let sandbox = watched.sandbox.clone();
    show_forwards(&sandbox, args.bind, &forwards, printer);
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let forwarding = Arc::new(Forwarding { place, sandbox, slots, printer: *printer });
    for forward in forwards {
        tokio::spawn(Arc::clone(&forwarding).accept_connections(Arc::new(forward)));
    }
    tokio::select! {
        signal = interrupts.next() => Ok(exit_code(signal)),
        () = watched.gone() => {
            printer.note("the sandbox has ended");
            Ok(0)
        }
    }
}

fn show_forwards(sandbox: &SandboxId, bind: IpAddr, forwards: &[Forward], printer: &Printer) {
    if !bind.is_loopback() {
        printer.note(&format!("note: whoever can reach {bind} can reach these ports"));
    }
    if printer.is_json() {
        let ports = forwards.iter().map(|it| json!({ "port": it.port, "address": it.address }));
        printer.json(&json!({ "sandbox": sandbox, "ports": ports.collect::<Vec<_>>() }));
    } else {
        let lines = forwards.iter().map(|it| format!("{} -> {}\n", it.address, it.port));
        printer.data(&lines.collect::<String>());
    }
}

impl Forward {
    async fn open(bind: IpAddr, port: ForwardedPort) -> Result<Self> {
        let wanted = SocketAddr::new(bind, port.local);
        let open = async {
            let listener = TcpListener::bind(wanted).await?;
            let address = listener.local_addr()?;
            io::Result::Ok((listener, address))
        };
        let (listener, address) = open.await.map_err(|error| listen_error(wanted, port, error))?;
        Ok(Self { listener, address, port: port.inside, failure_told: AtomicBool::new(false) })
    }

    /// Tells of the first connection of this port that could not be made.
    fn tell_failure(&self, error: &Error, printer: &Printer) {
        if !self.failure_told.swap(true, Ordering::Relaxed) {
            printer.note(&format!("a connection to {} was closed: {error}", self.address));
        }
    }
}

fn listen_error(wanted: SocketAddr, port: ForwardedPort, error: io::Error) -> Error {
    let other = format!("take another: `{0}:LOCAL`, or `{0}:0` for any that is free", port.inside);
    let (code, remedy) = if error.kind() == io::ErrorKind::AddrNotAvailable {
        (ErrorCode::Invalid, "give an address of this host to --bind".to_owned())
    } else {
        (ErrorCode::Unavailable, other)
    };
    let message = format!("{wanted} cannot be listened at");
    Error::new(code, PORT_OPERATION, message).remedy(remedy).source(error)
}

impl Forwarding {
    async fn accept_connections(self: Arc<Self>, forward: Arc<Forward>) {
        loop {
            let Ok((socket, _)) = forward.listener.accept().await else {
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                continue;
            };
            let Ok(slot) = Arc::clone(&self.slots).acquire_owned().await else { return };
            let (forwarding, forward) = (Arc::clone(&self), Arc::clone(&forward));
            tokio::spawn(async move {
                forwarding.serve_connection(&forward, socket).await;
                drop(slot);
            });
        }
    }

    async fn serve_connection(&self, forward: &Forward, mut socket: TcpStream) {
        // Small messages do not wait for others. A socket that refuses it works as well.
        let _ = socket.set_nodelay(true);
        match self.connect(forward.port).await {
            Ok(SupervisorConnection { mut reader, mut writer, .. }) => {
                if carry_stream(&mut reader, &mut writer, &mut socket).await {
                    return;
                }
            }
            Err(error) => forward.tell_failure(&error, &self.printer),
        }
        // A reset: an orderly end would look like a complete answer.
        let _ = socket.set_zero_linger();
    }

    async fn connect(&self, port: u16) -> Result<SupervisorConnection> {
        let mut connection = self.place.reach(&self.sandbox, PORT_OPERATION).await?;
        let request = SupervisorRequest::Connect { port };
        let (SupervisorReply::Done, _) = connection.ask(&request).await? else {
            return Err(out_of_turn(PORT_OPERATION));
        };
        Ok(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_of_the_host_is_the_same_unless_another_is_given() {
        for (given, inside, local) in
            [("8080", 8080, 8080), ("8080:0", 8080, 0), ("80:65535", 80, 65535)]
        {
            let parsed = given.parse::<ForwardedPort>().unwrap();
            assert_eq!(parsed, ForwardedPort { inside, local }, "{given}");
        }
        for wrong in ["", "0", "0:80", "80:", ":80", "80:80:80", "65536", "-1", "http"] {
            assert!(wrong.parse::<ForwardedPort>().is_err(), "{wrong}");
        }
    }
}
