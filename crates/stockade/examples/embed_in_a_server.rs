//! A server that runs the body of each request as shell, in a sandbox of its own, and answers what that wrote.
//!
//! `cargo run --example embed_in_a_server`, then `curl --data 'echo hi' http://127.0.0.1:PORT`

use std::convert::Infallible;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use stockade::{Command, Ending, Output, Stockade};
use tokio::net::TcpListener;

/// The longest script that is taken.
const MAX_SCRIPT_BYTES: usize = 64 << 10;

type Answer = Response<Full<Bytes>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let stockade = Stockade::open().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let stockade = stockade.clone();
        tokio::spawn(async move {
            let serve = service_fn(move |request| answer(stockade.clone(), request));
            // A client that goes away drops the request's future, and with it the sandbox.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), serve).await;
        });
    }
}

async fn answer(stockade: Stockade, request: Request<Incoming>) -> Result<Answer, Infallible> {
    let body = Limited::new(request.into_body(), MAX_SCRIPT_BYTES).collect().await;
    let script = body.ok().and_then(|body| String::from_utf8(body.to_bytes().to_vec()).ok());
    Ok(match script {
        Some(script) => run_script(&stockade, script).await,
        None => text(StatusCode::BAD_REQUEST, "send a short script as UTF-8\n".into()),
    })
}

async fn run_script(stockade: &Stockade, script: String) -> Answer {
    let mut spec = stockade.usual_spec().clone();
    spec.limits.wall_time = Some(Duration::from_secs(10).into());
    match stockade.run_command(spec, Command::shell(script)).await {
        Ok(output) => text(StatusCode::OK, describe(&output)),
        // A stable code for each kind of error, and the status that goes with it.
        Err(error) => {
            let status = StatusCode::from_u16(error.code().http_status());
            text(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), format!("{error}\n"))
        }
    }
}

fn describe(output: &Output) -> String {
    let ending = &output.outcome.ending;
    let told = match ending {
        Ending::Exited(code) => format!("exited with {code}"),
        Ending::TimedOut => "took too long".to_owned(),
        Ending::Signalled(signal) => format!("ended by {signal}"),
        Ending::StartFailed(_)
        | Ending::LimitExceeded(_)
        | Ending::Cancelled
        | Ending::Killed
        | Ending::Refused(_)
        | Ending::Lost(_) => format!("{ending:?}"),
    };
    format!("{}{}[{told}]\n", output.stdout_utf8(), output.stderr_utf8())
}

fn text(status: StatusCode, body: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    answer
}
