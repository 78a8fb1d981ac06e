/* What the files of a connection share. */
#ifndef DI_SERVER_CONNECTION_INTERNAL_H
#define DI_SERVER_CONNECTION_INTERNAL_H

#include "server/server_internal.h"

/* ---- connection.c ---- */

/* Gives bytes to the socket, which frees them; where that fails the connection is closed. */
void conn__send(di_conn *conn, di_buffer *data);

/* ---- connection_answer.c ---- */

/* A whole answer, with more header lines. type NULL: JSON. The body is freed. */
void conn__respond(di_conn *conn, int status, const char *type, const char *more, di_buffer *body);
void conn__respond_error(di_conn *conn, int status, const char *code, const char *more,
                         const char *message);
/* An error, behind which the connection ends. */
void conn__refuse(di_conn *conn, int status, const char *code, const char *message);

/* ---- connection_check.c ---- */

/* Finds the route and takes what the request says of itself; from here on the head's bytes are not needed
 * any more. False: it was answered. */
bool conn__check_head(di_conn *conn, const http_head *head);

#endif
