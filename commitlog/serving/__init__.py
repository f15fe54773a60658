"""The server of `commitlog serve`: stores over Arrow Flight. Private; it runs beside the stages."""
