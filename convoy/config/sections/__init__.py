"""The option table, one file per group of sections. Every option is declared here, once."""
