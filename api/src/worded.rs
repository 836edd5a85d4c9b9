//! Enums whose variants are written as one word each, in annotations and as label values.

/// Defines an enum together with the word of each variant and the list of all of them. Both come from
/// the definition, so a variant that is added cannot be missing in the list: one that were would be
/// written and never be read back, or have no series before it is counted first.
#[macro_export]
macro_rules! worded {
    (
        $(#[$enum_meta:meta])*
        $vis:vis enum $Name:ident {
            $($(#[$meta:meta])* $Variant:ident = $word:literal,)+
        }
    ) => {
        $(#[$enum_meta])*
        $vis enum $Name {
            $($(#[$meta])* $Variant,)+
        }

        impl $Name {
            /// All of them, in the order of their definition.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$Variant),+];

            /// The word for it; never the Debug form.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$Variant => $word,)+
                }
            }
        }
    };
}
