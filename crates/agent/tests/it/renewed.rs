//! An agent that goes on with another side in the place of the one it had.
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as Socket;

use crate::common::{
    Agent, TEST_TIMEOUT, eventually, is_alive, pids, read_to_end, read_until, sh, status, test,
};
use bytes::Bytes;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use stockade_agent::client::AgentClient;
use stockade_core::{Command, ExitStatus, Signal, Stdin};
use tokio::io::copy;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// An agent, its client, and another descriptor of its socket. A relay is between the two, as there is
/// wherever an agent goes on with another peer: the end of the agent's socket is not that of the client's.
async fn connected() -> (Agent, AgentClient, Socket) {
    let (agent, socket) = Agent::start();
    let held = socket.try_clone().unwrap();
    socket.set_nonblocking(true).unwrap();
    let (mut from_agent, mut to_agent) = UnixStream::from_std(socket).unwrap().into_split();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (mut from_client, mut to_client) = theirs.into_split();
    tokio::spawn(async move { copy(&mut from_client, &mut to_agent).await });
    tokio::spawn(async move {
        let _ = copy(&mut from_agent, &mut to_client).await;
        std::future::pending::<()>().await;
    });
    let client = AgentClient::connect(ours, TEST_TIMEOUT).await.unwrap();
    (agent, client, held)
}

/// Gives the agent another socket, whose other end is returned.
fn hand_over(held: &Socket) -> (OwnedReadHalf, OwnedWriteHalf) {
    let (ours, theirs) = Socket::pair().unwrap();
    let files = [theirs.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(held, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::empty()).unwrap();
    ours.set_nonblocking(true).unwrap();
    UnixStream::from_std(ours).unwrap().into_split()
}

#[test]
fn programs_outlive_the_client_that_started_them() {
    test(async {
        let (agent, client, held) = connected().await;
        let mut flood = client.spawn(&sh("echo $$ > pid; exec yes"), &[]).await.unwrap();
        read_until(&mut flood, "y\n").await;
        let pid = pids(&agent.path("pid"), 1).await[0];
        let last = client.last_channel();
        let (reader, writer) = hand_over(&held);
        let (other, carried) =
            AgentClient::take_over(reader, writer, TEST_TIMEOUT, last, &[]).await.unwrap();
        assert!(carried.is_empty());
        drop((client, held));
        assert_eq!(status(&other, &sh("exit 3")).await, ExitStatus::Exited(3));
        // Its output has no reader, and it is not blocked.
        let ticks = || std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let before = ticks();
        eventually("it writes on", || is_alive(pid) && ticks() != before).await;
        let mut done = other.spawn(&sh(&format!("kill {pid}")), &[]).await.unwrap();
        read_to_end(&mut done).await;
        eventually("it has ended", || !is_alive(pid)).await;
        assert_eq!(status(&other, &sh("exit 4")).await, ExitStatus::Exited(4));
    });
}

#[test]
fn a_program_that_is_carried_over_is_heard_and_ended_by_the_other_client() {
    test(async {
        let (agent, client, held) = connected().await;
        let line = "echo one; until [ -e go ]; do sleep 0.02; done; echo two; exit 5";
        let (channel, _, mut heard) = client.spawn_on_channel(&sh(line), &[]).await.unwrap();
        read_until(&mut heard, "one\n").await;
        let endless = sh("echo $$ > pid; sleep 600");
        let (killed, _, _never_read) = client.spawn_on_channel(&endless, &[]).await.unwrap();
        let pid = pids(&agent.path("pid"), 1).await[0];
        let last = client.last_channel();
        let (reader, writer) = hand_over(&held);
        let kept = [channel, killed];
        let (other, carried) =
            AgentClient::take_over(reader, writer, TEST_TIMEOUT, last, &kept).await.unwrap();
        let Ok([mut heard, endless]) = <[_; 2]>::try_from(carried) else { panic!("not both") };
        std::fs::write(agent.path("go"), "").unwrap();
        let done = read_to_end(&mut heard).await;
        assert_eq!(
            (done.stdout.as_slice(), done.exit.status),
            (&b"two\n"[..], ExitStatus::Exited(5))
        );
        endless.control.kill().await.unwrap();
        assert!(!is_alive(pid));
        assert_eq!(status(&other, &sh("exit 4")).await, ExitStatus::Exited(4));
    });
}

#[test]
fn what_ran_then_goes_on_and_what_began_later_is_gone() {
    test(async {
        let (_agent, client, held) = connected().await;
        let echo = Command { stdin: Stdin::Stream, ..sh("echo one; cat; exit 5") };
        let mut kept = client.spawn(&echo, &[]).await.unwrap();
        read_until(&mut kept, "one\n").await;
        let last = client.last_channel();
        let mut later = client.spawn(&sh("echo two; sleep 600"), &[]).await.unwrap();
        read_until(&mut later, "two\n").await;
        let (reader, writer) = hand_over(&held);
        client.go_back(reader, writer, TEST_TIMEOUT, (last, true)).await.unwrap();
        assert_eq!(read_to_end(&mut later).await.exit.status, ExitStatus::Signalled(Signal::KILL));
        let long = Bytes::from(vec![b'x'; 100_000]);
        kept.control.write_stdin(long.clone()).await.unwrap();
        kept.control.close_stdin().await.unwrap();
        let done = read_to_end(&mut kept).await;
        assert_eq!((done.stdout.len(), done.exit.status), (long.len(), ExitStatus::Exited(5)));
        assert_eq!(status(&client, &sh("exit 6")).await, ExitStatus::Exited(6));
    });
}

#[test]
fn what_another_client_has_used_is_not_used_again() {
    test(async {
        let (_agent, client, held) = connected().await;
        for _ in 0..5 {
            assert_eq!(status(&client, &sh("exit 0")).await, ExitStatus::Exited(0));
        }
        let mut theirs = client.spawn(&sh("echo one; sleep 600"), &[]).await.unwrap();
        read_until(&mut theirs, "one\n").await;
        let (_other_agent, other, _other_held) = connected().await;
        let mut own = other.spawn(&sh("echo two; sleep 600"), &[]).await.unwrap();
        read_until(&mut own, "two\n").await;
        let (reader, writer) = hand_over(&held);
        let last = client.last_channel();
        other.go_back(reader, writer, TEST_TIMEOUT, (last, false)).await.unwrap();
        assert_eq!(read_to_end(&mut own).await.exit.status, ExitStatus::Signalled(Signal::KILL));
        assert_eq!(status(&other, &sh("exit 6")).await, ExitStatus::Exited(6));
    });
}
