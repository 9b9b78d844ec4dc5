/// Writes the fields of a record, in their order. Fields that are not set are left out in human-readable formats. A
/// binary format has no field names, and would take the next field for a missing one. A field that is computed stands
/// in human-readable formats alone, because nobody reads it back.
macro_rules! lean {
    ($record:ident { $($always:ident),* } and { $($field:ident),* } $(with $name:literal = $computed:expr)?) => {
        impl serde::Serialize for $record {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeStruct;
                let whole = !serializer.is_human_readable();
                let fields = [$(stringify!($always),)* $(stringify!($field)),*].len();
                $(let fields = fields + [$name].len() * usize::from(!whole);)?
                let mut record = serializer.serialize_struct(stringify!($record), fields)?;
                $(record.serialize_field(stringify!($always), &self.$always)?;)*
                $(if whole || !$crate::values::lean::is_unset(&self.$field) {
                    record.serialize_field(stringify!($field), &self.$field)?;
                })*
                $(if !whole {
                    record.serialize_field($name, &$computed(self))?;
                })?
                record.end()
            }
        }
    };
}
pub(crate) use lean;

pub(crate) fn is_unset<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
