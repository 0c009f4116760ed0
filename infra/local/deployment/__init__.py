"""Read, build and deploy the template to a local AWS."""
