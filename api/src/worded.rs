//! Enums with one word per variant, for annotations and label values.

/// Defines an enum together with the word of each variant and a list of all variants. Both come
/// from the definition, so the list is always complete. A missing variant could be written but not
/// read, or would have no metric series before its first count.
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
            /// All variants in definition order.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$Variant),+];

            /// The word of the variant; never the Debug form.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$Variant => $word,)+
                }
            }
        }
    };
}
