//! How programs start, and how a failed start is reported (C-10, C-22).

use serde_json::json;
use stockade_core::{Command, Ending, Signal, StartFailure};

use crate::case::{case, check, same};
use crate::kit::probe_command;
use crate::{Case, Kit, Ran, Stop, Verdict};

pub(super) const START_CASES: &[Case] = &[
    case!("a program that does not exist is a start failure and no exit code", "C-10", not_found),
    case!("a file that is not executable is a start failure of that kind", "C-10", not_executable),
    case!("a directory that does not exist is a start failure of that kind", "C-10", bad_directory),
    case!("exit codes that shells give a meaning arrive as they are", "C-10", exit_codes),
    case!(
        "a program that a signal ended is reported with that signal",
        "C-10",
        check_signal_reported
    ),
    case!("arguments arrive exactly as they were given", "C-10", check_arguments),
    case!("a relative directory starts at the workspace root", "C-22", relative_directory),
    case!("an absolute path names the sandbox's own tree", "C-22", absolute_path).isolation(),
];

fn never_started(ran: &Ran) -> Verdict<&StartFailure> {
    let told = serde_json::to_value(&ran.outcome)?;
    same!("the exit code in the JSON form", told["exitCode"], json!(-1));
    let seen = &ran.outcome.ending;
    if let Ending::StartFailed(failure) = seen {
        return Ok(failure);
    }
    Err(Stop::Failed(format!("ending: expected a start failure, saw {seen:?}")))
}

async fn not_found(kit: Kit) -> Verdict {
    for program in ["./no-such-program", "no-such-program", "/no/such/program"] {
        let ran = kit.run_with(kit.spec(), Command::program([program])).await?;
        let failure = never_started(&ran)?;
        check!(matches!(failure, StartFailure::NotFound(_)), "expected not-found, saw {failure:?}");
    }
    Ok(())
}

async fn not_executable(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let written = room.facts(["write", "plain", "just text"]).await?;
    check!(written["ok"] == json!(true), "expected to write a file, saw {written}");
    let ran = room.run_command(Command::program(["./plain"])).await?;
    let failure = never_started(&ran)?;
    check!(
        matches!(failure, StartFailure::NotExecutable(_)),
        "expected not-executable, saw {failure:?}"
    );
    Ok(())
}

async fn bad_directory(kit: Kit) -> Verdict {
    let mut command = probe_command(["exit", "0"]);
    command.dir = Some("no-such-directory".parse()?);
    let ran = kit.run_with(kit.spec(), command).await?;
    let failure = never_started(&ran)?;
    check!(
        matches!(failure, StartFailure::BadDirectory(_)),
        "expected bad-directory, saw {failure:?}"
    );
    Ok(())
}

async fn exit_codes(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    for code in [0, 1, 2, 124, 125, 126, 127, 128, 137, 143, 200, 255] {
        room.run(["exit", &code.to_string()]).await?.exited(code)?;
    }
    Ok(())
}

async fn check_signal_reported(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    for number in [6, 9, 10, 11, 15] {
        let ran = room.run(["signal-self", &number.to_string()]).await?;
        let ran = ran.ended(&Ending::Signalled(Signal(number)))?;
        let told = serde_json::to_value(&ran.outcome)?;
        let expected = (json!(Signal(number).name()), json!(-1));
        same!(
            "signal and exit code in the JSON form",
            (told["signal"].clone(), told["exitCode"].clone()),
            expected
        );
    }
    Ok(())
}

async fn check_arguments(kit: Kit) -> Verdict {
    let given = ["", " ", "a b", "\"quoted\"", "$HOME", "*", "new\nline", "-x", "--", "é漢", "\\"];
    let verb: Vec<&str> = ["report"].into_iter().chain(given).collect();
    let facts = kit.facts(verb).await?;
    let seen =
        facts["arguments"].as_array().map(|all| all.iter().skip(2).cloned().collect::<Vec<_>>());
    same!("the arguments", seen, Some(given.map(|text| json!(text)).to_vec()));
    Ok(())
}

async fn relative_directory(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let here = room.facts(["report"]).await?["directory"].clone();
    let mut command = probe_command(["report"]);
    command.dir = Some(".".parse()?);
    let there = room.run_command(command).await?.facts()?["directory"].clone();
    same!("the working directory", there, here);
    Ok(())
}

async fn absolute_path(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    room.facts(["write", "here", "text"]).await?;
    let root = match kit.subject().has_namespaces() {
        true => stockade_core::WORKSPACE_ROOT.to_owned(),
        // Where nothing can be mounted, the workspace keeps the host's name for it.
        false => kit.workspace().to_string_lossy().into_owned(),
    };
    let read = room.facts(["read", &format!("{root}/here")]).await?;
    same!(
        "the workspace's file by its absolute path",
        read,
        json!({ "ok": true, "hex": "74657874" })
    );
    let etc = kit.outside();
    let listed = room.facts(["list", &etc.to_string_lossy()]).await?;
    check!(listed["ok"] == json!(false), "expected no host directory, saw {listed}");
    Ok(())
}
