//! `stockade token`: makes, lists and revokes the tokens with which others use `stockade serve`.

use std::collections::BTreeSet;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use stockade_core::{Error, ErrorCode, NameError, Result, TenantName, TokenName};
use stockade_engine::StateDir;
use stockade_server::api::{TokenRecord, TokenRight, TokenStore};

use crate::config::Settings;
use crate::terminal::printer::Printer;
use crate::terminal::table::{Cell, Table};

/// What to do with tokens.
#[derive(Debug, Args)]
pub struct TokenArgs {
    #[command(subcommand)]
    verb: TokenVerb,
}

#[derive(Debug, Subcommand)]
enum TokenVerb {
    /// Make a token, and print it. It is shown this once: only its hash is stored.
    New {
        /// What the token is called by.
        #[arg(value_name = "NAME")]
        name: TokenName,
        /// Whose sandboxes its holder works with. [default: one with the name of the token]
        #[arg(long, value_name = "TENANT")]
        tenant: Option<TenantName>,
        /// What its holder may do: `run`, `read`, or `admin` for both and the daemon's metrics.
        #[arg(long, value_name = "RIGHTS", value_delimiter = ',', default_value = "run,read")]
        rights: Vec<TokenRight>,
    },
    /// List tokens.
    Ls,
    /// Revoke a token: requests with it are refused from now on.
    Revoke {
        /// The token's name.
        #[arg(value_name = "NAME")]
        name: TokenName,
    },
}

/// Does it.
pub fn token(args: TokenArgs, printer: &Printer) -> Result<i32> {
    let settings = Settings::load(None, printer)?;
    let store = TokenStore::open(&StateDir::open(settings.state_dir()?)?)?;
    match args.verb {
        TokenVerb::New { name, tenant, rights } => {
            let tenant = match tenant {
                Some(tenant) => tenant,
                // Not that of the configuration, which the daemon's own user works as.
                None => name.as_str().parse().map_err(|error: NameError| {
                    Error::new(ErrorCode::Invalid, "token", error.to_string())
                        .remedy("name a tenant with --tenant")
                })?,
            };
            let rights: BTreeSet<_> = rights.into_iter().collect();
            let (record, secret) = store.issue(name, tenant, rights)?;
            print_token(&record, &secret, printer);
        }
        TokenVerb::Ls => print_tokens(&store.list()?, printer),
        TokenVerb::Revoke { name } => store.revoke(&name)?,
    }
    Ok(0)
}

fn print_token(record: &TokenRecord, secret: &str, printer: &Printer) {
    if printer.is_json() {
        let mut told = describe_token(record);
        told["token"] = secret.into();
        return printer.json(&told);
    }
    printer.data(&format!("{secret}\n"));
}

/// What is told of a token: all but its hash.
fn describe_token(token: &TokenRecord) -> Value {
    let TokenRecord { name, tenant, rights, created, .. } = token;
    json!({ "name": name, "tenant": tenant, "rights": rights, "created": created })
}

fn print_tokens(tokens: &[TokenRecord], printer: &Printer) {
    if printer.is_json() {
        let told: Vec<_> = tokens.iter().map(describe_token).collect();
        return printer.json(&told);
    }
    let mut table = Table::new(["NAME", "TENANT", "RIGHTS", "CREATED"]);
    for token in tokens {
        let rights: Vec<_> = token.rights.iter().map(|right| right.name()).collect();
        table.row([
            Cell::plain(token.name.as_str()),
            Cell::plain(token.tenant.as_str()),
            Cell::plain(rights.join(",")),
            Cell::plain(token.created.to_string()),
        ]);
    }
    printer.data(&table.render(printer));
}
