"""The option table, a file for each group of sections. Every option is declared here, once."""
