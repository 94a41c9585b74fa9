//! The image that a command names: pulled before a sandbox is built for it where its defaults are wanted or another
//! process builds the sandbox, so that a person sees the bar and can end it.

use stockade_core::{
    EnvName, Error, ErrorCode, Image, ImageDefaults, ImageName, ResolvedImage, Result, SandboxSpec,
    Signal, User,
};

use crate::args::SpecArgs;
use crate::args::command::CommandArgs;
use crate::config::Settings;
use crate::registry;
use crate::terminal::interrupts::Interrupts;
use crate::terminal::printer::Printer;

const DEFAULTS_FLAG: &str = "--image-defaults";
const PULL_FLAG: &str = "--pull";

/// What is wanted of an image before its sandbox is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageUse {
    /// Nothing: it is no image by name, or the engine pulls it when it builds.
    Later,
    /// That it is stored, and what its name means.
    Pinned,
    /// What it says about processes in it, too.
    Defaults,
}

/// What became of it.
pub enum PulledAhead {
    /// Nothing of the image is taken.
    Nothing,
    /// These are, and the spec has them where no flag says otherwise.
    Defaults(ImageDefaults),
    /// The caller would not wait.
    Interrupted(Signal),
}

impl ImageUse {
    /// What a command of its own wants of the image.
    pub fn of_command(
        flags: &SpecArgs,
        command: &CommandArgs,
        spec: &SandboxSpec,
        detached: bool,
    ) -> Result<Self> {
        check_flags(flags, spec)?;
        Ok(match (&spec.image, flags.image_defaults || command.is_empty()) {
            (Image::Named(_) | Image::Oci(_), true) => Self::Defaults,
            (Image::Named(_), false) if detached => Self::Pinned,
            (Image::Named(_) | Image::Oci(_), false)
            | (Image::Host | Image::Directory(_) | Image::Wasm(_), _) => Self::Later,
        })
    }

    /// What a sandbox that lives on wants of it.
    fn of_sandbox(flags: &SpecArgs, spec: &SandboxSpec) -> Result<Self> {
        check_flags(flags, spec)?;
        Ok(match (&spec.image, flags.image_defaults) {
            (Image::Named(_) | Image::Oci(_), true) => Self::Defaults,
            (Image::Named(_), false) => Self::Pinned,
            (Image::Oci(_), false) | (Image::Host | Image::Directory(_) | Image::Wasm(_), _) => {
                Self::Later
            }
        })
    }

    /// Pulls the image, if it comes from this user's store, and puts what it means into the spec.
    pub async fn pull_ahead(
        self,
        spec: &mut SandboxSpec,
        settings: &Settings,
        printer: &Printer,
    ) -> Result<PulledAhead> {
        if self == Self::Later {
            return Ok(PulledAhead::Nothing);
        }
        let mut interrupts = Interrupts::listen()?;
        let engine = registry::engine(settings, &spec.backend).await?;
        let pulled = interrupts.unless(engine.resolve_image(spec)).await;
        engine.close().await?;
        match pulled {
            Ok(image) => self.take(image?, spec, printer),
            Err(signal) => Ok(PulledAhead::Interrupted(signal)),
        }
    }

    fn take(
        self,
        image: Option<ResolvedImage>,
        spec: &mut SandboxSpec,
        printer: &Printer,
    ) -> Result<PulledAhead> {
        match (image, self) {
            (Some(image), Self::Defaults) => {
                pin_name(spec, image.name);
                add_defaults(&image.defaults, spec, printer);
                Ok(PulledAhead::Defaults(image.defaults))
            }
            (Some(image), Self::Pinned | Self::Later) => {
                pin_name(spec, image.name);
                Ok(PulledAhead::Nothing)
            }
            // What the backend cannot do is told when it is asked to.
            (None, Self::Pinned | Self::Later) => Ok(PulledAhead::Nothing),
            (None, Self::Defaults) => Err(no_defaults_error()),
        }
    }
}

/// Pulls the image of a sandbox that lives on; answers the signal that ended it, if one did.
pub async fn pull_for_sandbox(
    flags: &SpecArgs,
    spec: &mut SandboxSpec,
    settings: &Settings,
    printer: &Printer,
) -> Result<Option<Signal>> {
    let image = ImageUse::of_sandbox(flags, spec)?;
    Ok(match image.pull_ahead(spec, settings, printer).await? {
        PulledAhead::Interrupted(signal) => Some(signal),
        PulledAhead::Defaults(_) | PulledAhead::Nothing => None,
    })
}

/// Has a spec name an image by its digest. An archive stays one: nothing keeps what was imported from being pruned.
fn pin_name(spec: &mut SandboxSpec, name: ImageName) {
    match spec.image {
        Image::Named(_) => spec.image = Image::Named(name),
        Image::Oci(_) | Image::Host | Image::Directory(_) | Image::Wasm(_) => {}
    }
}

/// Refuses flags about an image where none is named that they could be about.
fn check_flags(flags: &SpecArgs, spec: &SandboxSpec) -> Result<()> {
    let is_named = matches!(spec.image, Image::Named(_));
    let is_archive = matches!(spec.image, Image::Oci(_));
    if flags.pull.is_some() && !is_named {
        return Err(no_image_error(PULL_FLAG, "name one with --image NAME"));
    }
    if flags.image_defaults && !is_named && !is_archive {
        let remedy = "name one with --image NAME, or an archive with --image oci:FILE";
        return Err(no_image_error(DEFAULTS_FLAG, remedy));
    }
    Ok(())
}

fn no_image_error(flag: &'static str, remedy: &str) -> Error {
    let message = "is about an image of a registry, and none is named";
    Error::new(ErrorCode::Invalid, flag, message).remedy(remedy)
}

fn no_defaults_error() -> Error {
    let message = "what the image runs and needs is not known: the backend reads archives itself, or \
                   cannot have this image here";
    Error::new(ErrorCode::Unsupported, DEFAULTS_FLAG, message)
        .remedy("name a command, or a backend that takes images from stockade (`stockade explain`)")
}

/// Puts what the image says into a spec, wherever a flag has not said it.
fn add_defaults(image: &ImageDefaults, spec: &mut SandboxSpec, printer: &Printer) {
    for variable in &image.env {
        if let Some((name, value)) = variable.split_once('=')
            && let Ok(name) = name.parse::<EnvName>()
        {
            spec.env.entry(name).or_insert_with(|| value.to_owned());
        }
    }
    if spec.workdir.is_none() && !image.workdir.is_empty() {
        spec.workdir = image.workdir.parse().ok();
    }
    match image.user.parse::<User>() {
        Ok(user) => spec.user = spec.user.or(Some(user)),
        Err(_) if image.user.is_empty() || spec.user.is_some() => {}
        Err(_) => {
            let user = stockade_core::clean_foreign(&image.user);
            printer.note(&format!(
                "note: the image's user `{user}` is a name and not taken: give --user UID:GID"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_wins_over_what_the_image_says() {
        let image = ImageDefaults {
            env: ["A=image", "B=image", "1=x", "none"].map(str::to_owned).to_vec(),
            user: "33".into(),
            workdir: "/srv".into(),
            ..ImageDefaults::default()
        };
        let name = |name: &str| name.parse::<EnvName>().unwrap();
        let mut spec = SandboxSpec::default();
        spec.env.insert(name("A"), "flag".into());
        let printer = Printer::new(false);
        add_defaults(&image, &mut spec, &printer);
        assert_eq!(spec.env.len(), 2, "{:?}", spec.env);
        assert_eq!((&*spec.env[&name("A")], &*spec.env[&name("B")]), ("flag", "image"));
        assert_eq!(spec.workdir.as_ref().map(|dir| dir.as_str()), Some("/srv"));
        assert_eq!(spec.user, Some(User { uid: 33, gid: 33 }));
        let before = spec.clone();
        let other = ImageDefaults { user: "7".into(), workdir: "/x".into(), ..image };
        add_defaults(&other, &mut spec, &printer);
        assert_eq!(spec, before);
    }
}
